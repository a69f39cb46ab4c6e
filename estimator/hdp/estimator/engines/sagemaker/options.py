"""What only the SageMaker engine knows about a job: `engine_options` as a strict model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from hdp.estimator.faults import Strict, of_validation


class SageMakerOptions(Strict):
    """Options of the SageMaker engine."""

    runtime: Literal["carried", "image"] = "carried"
    """Whether hdp's runtime travels with the job, or the image has it already."""


def parse(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Options with defaults filled in, and the faults found, one line each (empty: fine)."""
    try:
        return SageMakerOptions.model_validate(dict(options)).model_dump(), ()
    except ValidationError as exc:
        return dict(options), tuple(of_validation(exc, SageMakerOptions, "engine_options"))
