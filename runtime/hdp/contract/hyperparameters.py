"""How a hyperparameter's value travels: JSON text in the request, typed values and argv in the container.

Source of the argv rules: SageMaker's training toolkit 5.1.4 (``--k value``, ``-k`` for one letter, sorted by key,
``True``/``False`` as text, None as an empty string). Lists and dicts are JSON here, where the toolkit prints Python
reprs that no parser reads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Text that stands for a bare flag (``--verbose`` with no value) in hyperparameters.json.
FLAG_TEXT = '{"$hdp": "flag"}'
_FLAG_VALUE = json.loads(FLAG_TEXT)

#: Hyperparameters with this prefix are the launcher's own and never reach the script.
RESERVED_PREFIX = "sagemaker_"


class Flag:
    """The marker for a hyperparameter that becomes a bare flag: ``{"verbose": FLAG}`` gives ``--verbose``."""

    def __repr__(self) -> str:
        return "FLAG"


FLAG = Flag()


def encode(value: Any) -> str:
    """JSON text of `value`; `FLAG` becomes `FLAG_TEXT`. Raises TypeError or ValueError for what JSON can't say."""
    return FLAG_TEXT if isinstance(value, Flag) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def decode(text: str) -> Any:
    """Inverse of `encode`. Text that is not JSON (written by another client) is returned as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return FLAG if value == _FLAG_VALUE else value


def to_argv(values: Mapping[str, Any]) -> list[str]:
    """Command line arguments of the decoded hyperparameters `values`, sorted by key."""
    argv: list[str] = []
    for key in sorted(values):
        argv.append(f"-{key}" if len(key) == 1 else f"--{key}")
        if not isinstance(values[key], Flag):
            argv.append(_argument(values[key]))
    return argv


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as JSON can say them: `FLAG` becomes true. For SM_HPS and SM_HP_*."""
    return {k: True if isinstance(v, Flag) else v for k, v in values.items()}


def text(value: Any) -> str:
    """One value as SM_HP_* and argv show it."""
    return _argument(True if isinstance(value, Flag) else value)


def _argument(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)
