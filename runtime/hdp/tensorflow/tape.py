"""`DistributedGradientTape`: a tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hdp.tensorflow.compression import Compression
from hdp.tensorflow.functions import Average
from hdp.tensorflow.gradients import Reduction, reduction


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """`gradtape`, but `gradient` gives the average (or sum) over all ranks.

    compression: `Compression.fp16` or `.bf16` halve what travels between hosts. sparse_as_dense: tf.IndexedSlices
    become tensors first; else all ranks' rows are gathered. op: Average or Sum. gradient_predivide_factor: divide by
    it before the sum, and by the rest after. bucket_cap_mb: megabytes of gradients that travel together.
    Other keywords are Horovod's and SMDDP's, and refused where they would change anything.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: str = Compression.none,
        sparse_as_dense: bool = False,
        op: Any = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
        bucket_cap_mb: float = 25,
    ) -> None:
        self._tape_of_one = gradtape
        self._reduction: Reduction = reduction(
            "DistributedGradientTape",
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            bucket_cap_mb=bucket_cap_mb,
            device_dense=(device_dense, ""),
            device_sparse=(device_sparse, ""),
            num_groups=(num_groups, 0),
            groups=(groups, None),
            process_set=(process_set, None),
            scale_local_gradients=(scale_local_gradients, True),
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
        """Gradients of `target` by `sources`, over all ranks; the structure of `sources`."""
        found = self._tape_of_one.gradient(target, sources, *arguments, **keywords)
        flat = tf.nest.flatten(sources)
        return tf.nest.pack_sequence_as(sources, self._reduction(tf.nest.flatten(found), flat))

    def __enter__(self) -> DistributedGradientTape:
        self._tape_of_one.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape_of_one.__exit__(*exception)

    def watch(self, tensor: Any) -> None:
        """As the tape's."""
        self._tape_of_one.watch(tensor)

    def watched_variables(self) -> Any:
        """As the tape's."""
        return self._tape_of_one.watched_variables()

    def stop_recording(self) -> Any:
        """As the tape's."""
        return self._tape_of_one.stop_recording()

    def reset(self) -> None:
        """As the tape's."""
        self._tape_of_one.reset()

    def jacobian(self, *arguments: Any, **keywords: Any) -> Any:
        """As the tape's: of this rank alone."""
        return self._tape_of_one.jacobian(*arguments, **keywords)

    def batch_jacobian(self, *arguments: Any, **keywords: Any) -> Any:
        """As the tape's: of this rank alone."""
        return self._tape_of_one.batch_jacobian(*arguments, **keywords)
