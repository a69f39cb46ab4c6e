"""A comparison as JSON, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import SpecError
from hdp.estimator.comparison.model import Run, Setting, Variant
from hdp.estimator.comparison.steps import Steps

if TYPE_CHECKING:
    from hdp.estimator.comparison.report import Comparison

#: What the file is, and which version of its form this is.
FORMAT, VERSION = "hdp comparison", 1
_OWN = ("repeats", "warmup", "price_per_hour", "loss_tolerance")


def to_json(comparison: Comparison) -> str:
    """See `Comparison.to_json`. Strict JSON: what it has no number for is text, "nan", "inf", "-inf"."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "setting": asdict(comparison.setting),
        **{name: getattr(comparison, name) for name in _OWN},
        "figures": comparison.rows(),
        "variants": [asdict(variant) for variant in comparison.variants],
        "runs": [asdict(run) for run in comparison.runs],
    }
    return json.dumps(_plain(body), indent=1, allow_nan=False)


def from_json(text: str) -> Comparison:
    """See `Comparison.from_json`."""
    from hdp.estimator.comparison.report import Comparison

    try:
        body = json.loads(text)
        if body.get("format") != FORMAT or body.get("version") != VERSION:
            raise ValueError(f"it has format {body.get('format')!r}, version {body.get('version')!r}")
        return Comparison(
            setting=Setting(**body["setting"]),
            variants=tuple(Variant(**row) for row in body["variants"]),
            runs=tuple(_run(row) for row in body["runs"]),
            **{name: body[name] for name in _OWN},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        said = f"{type(exc).__name__}: {exc}"
        fault = f"this isn't what Comparison.to_json (format {FORMAT!r}, version {VERSION}) gives: {said}"
        raise SpecError([fault], "Comparison.from_json") from exc


def _run(row: Mapping[str, Any]) -> Run:
    steps = row["steps"]
    read = Steps(
        tuple(steps["numbers"]),
        tuple(map(float, steps["seconds"])),
        _number(steps["samples"]),
        _number(steps["loss"]),
        steps["count"],
    )
    return Run(**{**row, "steps": read})


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
