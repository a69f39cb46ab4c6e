"""The exceptions of the client. The whole tree is drawn in `hdp.contract.errors`, where it is defined."""

from hdp.contract.errors import (
    ComparisonFailed,
    EngineError,
    HdpError,
    JobNotFound,
    SpecError,
    TrainingJobFailed,
    TrainingJobStopped,
)

__all__ = [
    "ComparisonFailed",
    "EngineError",
    "HdpError",
    "JobNotFound",
    "SpecError",
    "TrainingJobFailed",
    "TrainingJobStopped",
]
