"""The exceptions of the client. The whole tree is drawn in `hdp.contract.errors`, where it is defined."""

from hdp.contract.errors import (
    EngineError,
    HdpError,
    JobNotFound,
    SpecError,
    TrainingJobFailed,
    TrainingJobStopped,
)

__all__ = ["EngineError", "HdpError", "JobNotFound", "SpecError", "TrainingJobFailed", "TrainingJobStopped"]
