"""`PyTorch` and `TensorFlow`: an `Estimator` whose script is given first, with v2's arguments for versions."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

from hdp.estimator.estimator import Estimator

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hdp.estimator.arguments import FrameworkArguments, TensorFlowArguments


class PyTorch(Estimator):
    """An `Estimator` for a PyTorch script.

    entry_point: the script. framework_version and py_version choose AWS's image on SageMaker (image_uri wins); engines
    without images keep them only. All else: see `Estimator`.
    """

    _refused: ClassVar[Mapping[str, str]] = {"model_dir": "it belongs to TensorFlow; pass it as a hyperparameter"}
    _framework: ClassVar[str | None] = "pytorch"

    def __init__(self, entry_point: str | PathLike[str] | None = None, **arguments: Unpack[FrameworkArguments]) -> None:
        self._prepare({"entry_point": entry_point, **arguments})


class TensorFlow(Estimator):
    """An `Estimator` for a TensorFlow script.

    entry_point: the script. model_dir: what the script gets as ``--model_dir``; False for none. Without one, jobs on
    SageMaker get v2's: ``/opt/ml/model`` under mpi, else ``<output_path>/<job>/model``; jobs elsewhere get none, and
    find their folder in SM_MODEL_DIR. All else: see `PyTorch` and `Estimator`.
    """

    _refused: ClassVar[Mapping[str, str]] = {}
    _framework: ClassVar[str | None] = "tensorflow"

    def __init__(
        self, entry_point: str | PathLike[str] | None = None, **arguments: Unpack[TensorFlowArguments]
    ) -> None:
        self._prepare({"entry_point": entry_point, **arguments})

    def _defaults(self, job_name: str) -> Mapping[str, Any]:
        given = self.settings.model_dir
        if given is False or (given is None and not self._prepared.target.cloud):
            return {}
        return {"model_dir": self._usual_model_dir(job_name) if given is None else given}

    def _usual_model_dir(self, job_name: str) -> str:
        from hdp.estimator.request import DEFAULT_BUCKET

        if self._prepared.launch.kind == "mpi":
            return "/opt/ml/model"
        base = (self.settings.output_path or DEFAULT_BUCKET).rstrip("/")
        return f"{base}/{job_name}/model"
