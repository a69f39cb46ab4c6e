"""Hides secrets in what people read: plans, logs, reports. The values that travel are never changed.

A value is hidden when its *name* says that it is a secret (``password``, ``hf_token``, ``apiKey``), or when the value
itself has the shape of one (an AWS access key, a password inside a URL). Words of language models that end in
"token" (``pad_token``, ``max_tokens``) are not secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: What stands in the place of a secret.
HIDDEN = "***"

_WORDS = re.compile(
    r"passw(or)?d|passphrase|secret|api_?key|access_?key|private_?key|signing_?key|credential|(^|_)auth$|(^|_)token$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HARMLESS = re.compile(r"(^|_)(pad|eos|bos|unk|sep|cls|mask|stop|start|end|special)_token$")
_SHAPES = (
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@"), rf"\1:{HIDDEN}@"),
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable, hyperparameter or option says that its value is a secret."""
    word = _CAMEL.sub("_", name).lower().replace("-", "_").strip("_")
    return bool(_WORDS.search(word)) and not _HARMLESS.search(word)


def redact_text(text: str) -> str:
    """`text` without AWS access keys and without passwords inside URLs."""
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def redact(value: Any) -> Any:
    """A copy of `value` (mappings, sequences and plain values, nested) with its secrets hidden."""
    if isinstance(value, Mapping):
        return {k: HIDDEN if is_secret(str(k)) and v is not None else redact(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(v) for v in value]
    return _redact_json(value) if isinstance(value, str) else value


def redact_argv(argv: Sequence[str]) -> list[str]:
    """`argv` with the values of ``--secret value`` and ``--secret=value`` hidden."""
    out: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        option = argument.startswith("-") and is_secret(name)
        if hide_next and not option:
            out.append(HIDDEN)
        else:
            out.append(f"{name}={HIDDEN}" if option and equals else str(redact(argument)))
        hide_next = option and not equals
    return out


def _redact_json(text: str) -> str:
    """A string that holds a JSON object or list has its members redacted; other text only its shapes."""
    if text[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError:
            return redact_text(text)
        hidden = redact(value)
        return text if hidden == value else json.dumps(hidden, ensure_ascii=False)
    return redact_text(text)
