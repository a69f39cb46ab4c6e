"""`BroadcastGlobalVariablesHook`, for TensorFlow 1's sessions and tf.estimator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hdp.tensorflow.refusals import refuse
from hdp.tensorflow.variables import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives every rank the variables of rank `root_rank` when the session is made. device: Horovod's; refused."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        refuse("BroadcastGlobalVariablesHook", {"device": (device, "")})
        self.root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Make the operation, while the graph can be changed."""
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - SessionRunHook's arguments
        """Run it."""
        session.run(self._operation)
