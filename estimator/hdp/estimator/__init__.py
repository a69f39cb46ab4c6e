"""The client: describe a training job, see what it would be, run it.

::

    from hdp.estimator import PyTorch, TrainingInput

    estimator = PyTorch("train.py", instance_count=2, distribution={"hdp": {"enabled": True, "processes_per_host": 2}})
    print(estimator.plan("file:///data/digits/"))
    job = estimator.fit("file:///data/digits/")

Names load on first use: importing this package loads no boto3, botocore, torch, pydantic or rich.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdp.estimator.comparison import Comparison, compare
    from hdp.estimator.compiler import TrainingCompilerConfig
    from hdp.estimator.debugger import (
        CollectionConfig,
        DebuggerHookConfig,
        ProfilerConfig,
        ProfilerRule,
        Rule,
        TensorBoardOutputConfig,
    )
    from hdp.estimator.errors import (
        ComparisonFailed,
        EngineError,
        HdpError,
        JobNotFound,
        SpecError,
        TrainingJobFailed,
        TrainingJobStopped,
    )
    from hdp.estimator.estimator import Estimator
    from hdp.estimator.filesystems import FileSystemInput
    from hdp.estimator.frameworks import PyTorch, TensorFlow
    from hdp.estimator.groups import InstanceGroup
    from hdp.estimator.hyperparameters import FLAG
    from hdp.estimator.inputs import ShuffleConfig, TrainingInput
    from hdp.estimator.job import TrainingJob
    from hdp.estimator.plan import Plan, ProcessPlan, RankPlan

__all__ = [
    "FLAG",
    "CollectionConfig",
    "Comparison",
    "ComparisonFailed",
    "DebuggerHookConfig",
    "EngineError",
    "Estimator",
    "FileSystemInput",
    "HdpError",
    "InstanceGroup",
    "JobNotFound",
    "Plan",
    "ProcessPlan",
    "ProfilerConfig",
    "ProfilerRule",
    "PyTorch",
    "RankPlan",
    "Rule",
    "ShuffleConfig",
    "SpecError",
    "TensorBoardOutputConfig",
    "TensorFlow",
    "TrainingCompilerConfig",
    "TrainingInput",
    "TrainingJob",
    "TrainingJobFailed",
    "TrainingJobStopped",
    "compare",
]

_HOME = {
    "CollectionConfig": "debugger",
    "Comparison": "comparison",
    "DebuggerHookConfig": "debugger",
    "FLAG": "hyperparameters",
    "Estimator": "estimator",
    "FileSystemInput": "filesystems",
    "InstanceGroup": "groups",
    "Plan": "plan",
    "ProcessPlan": "plan",
    "ProfilerConfig": "debugger",
    "ProfilerRule": "debugger",
    "PyTorch": "frameworks",
    "RankPlan": "plan",
    "Rule": "debugger",
    "ShuffleConfig": "inputs",
    "TensorBoardOutputConfig": "debugger",
    "TensorFlow": "frameworks",
    "TrainingCompilerConfig": "compiler",
    "TrainingInput": "inputs",
    "TrainingJob": "job",
    "compare": "comparison",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
