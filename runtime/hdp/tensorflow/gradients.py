"""The sum or average of a step's gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hdp.contract.errors import InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import ops, process
from hdp.tensorflow.buckets import Gradient, bucket_bytes_of, plan
from hdp.tensorflow.compression import Compression
from hdp.tensorflow.functions import Average, Sum, sparse_allreduce
from hdp.tensorflow.refusals import refuse
from hdp.tensorflow.sequence import next_call

_TAG = "gradients"


@dataclass(frozen=True)
class Reduction:
    """How gradients are combined: what the tape and the optimizers are told."""

    op: Any = Average
    compression: str = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    bucket_bytes: int = 25 << 20

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """`gradients` over all ranks, in their order. None stays None: then it must be None on every rank.

        variables: what they are gradients of; their names are in errors.
        """
        found = [self._plain(g) for g in gradients]
        if process.size() == 1:
            return found
        described = [_described(g, v, i) for i, (g, v) in enumerate(zip_strict(found, variables))]
        made = plan(described, self.bucket_bytes)
        call, number = next_call(_TAG)
        divides = self.predivide != 1.0
        op = Sum if divides else self.op
        finishes = []
        for place, bucket in enumerate(made.buckets):
            tensors, backs = zip_strict(*(ops.carried(self._divided(found[i]), op) for i in bucket))
            tag = f"{call} {place}"
            finishes.append(
                (bucket, backs, ops.start_allreduce(tensors, op, tag=tag, number=number, wire=self.compression))
            )
        results = list(found)
        for place in made.sparse:
            results[place] = sparse_allreduce(found[place], self.op, f"{_TAG} {place}")
        for bucket, backs, finish in finishes:
            for i, back, result in zip_strict(bucket, backs, finish()):
                results[i] = back(result)
                if divides:
                    results[i] *= tf.cast(self.predivide / process.size(), results[i].dtype)
        return results

    def _plain(self, gradient: Any) -> Any:
        if gradient is None or (isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense):
            return gradient
        return tf.convert_to_tensor(gradient)

    def _divided(self, gradient: Any) -> Any:
        return gradient if self.predivide == 1.0 else gradient / tf.cast(self.predivide, gradient.dtype)


def reduction(
    function: str,
    *,
    op: Any = Average,
    compression: str = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    bucket_cap_mb: float = 25,
    **refused: tuple[Any, Any],
) -> Reduction:
    """A `Reduction` from the keywords of `function`. refused: keyword -> (value, the one that changes nothing).

    Raises InvalidCollective.
    """
    refuse(function, refused)
    if op not in (Average, Sum):
        raise InvalidCollective(f"{function}(op={op!r}): gradients are combined by Average or Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidCollective(f"{function}(gradient_predivide_factor=...) goes with op=Average alone")
    if compression not in (Compression.none, Compression.fp16, Compression.bf16):
        raise InvalidCollective(f"{function}(compression={compression!r}): expected one of dist.Compression's")
    return Reduction(op, compression, sparse_as_dense, gradient_predivide_factor, bucket_bytes_of(bucket_cap_mb))


def _described(gradient: Any, variable: Any, place: int) -> Gradient:
    name = str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"gradient {place}")
    if gradient is None:
        return Gradient(name, "", (), "none", 0)
    if isinstance(gradient, tf.IndexedSlices):
        shape = tuple(gradient.values.shape[1:].as_list()) if gradient.values.shape.rank else ()
        return Gradient(name, gradient.dtype.name, (None, *shape), "sparse", 0)
    shape = gradient.shape if gradient.shape.is_fully_defined() else variable.shape
    elements = tf.TensorShape(shape).num_elements() or 0
    return Gradient(name, gradient.dtype.name, tuple(shape), "dense", elements * gradient.dtype.size)
