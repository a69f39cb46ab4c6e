"""hdp on an image that doesn't contain it: what travels with a job, and how its request says so.

`carriage` is what a request says, `runtime_files` what belongs where it says so.
"""

from __future__ import annotations


def runtime_files() -> dict[str, bytes]:
    """The files that belong below the URI of a request's channel ``hdp_runtime``. Raises EngineError."""
    from hdp.estimator.delivery.parcel import parcel

    return dict(parcel().files)
