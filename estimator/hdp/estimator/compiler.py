"""SageMaker's Training Compiler, as v2 spells it: hyperparameters, and images of its own for PyTorch."""

from __future__ import annotations

from hdp.estimator.faults import Spoken


class TrainingCompilerConfig(Spoken):
    """Compile the model in AWS's container for it (PyTorch 1.12 and 1.13; AWS doesn't develop it any more).

    debug: log what the compiler does. Several hosts need ``distribution={"pytorchxla": {"enabled": True}}`` too.
    """

    enabled: bool = True
    debug: bool = False

    def __init__(self, enabled: bool = True, debug: bool = False) -> None:
        super().__init__(**{"enabled": enabled, "debug": debug})

    def hyperparameters(self) -> dict[str, bool]:
        """What tells the container."""
        return {
            "sagemaker_training_compiler_enabled": self.enabled,
            "sagemaker_training_compiler_debug_mode": self.debug,
        }
