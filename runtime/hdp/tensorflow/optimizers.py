"""`DistributedOptimizer`: an optimizer that applies the gradients of all ranks.

The optimizer's class becomes a subclass made for it, under the same name. So it keeps its slots, its schedule and all
else that it was told, and a saved model names the plain class and loads where hdp isn't installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hdp.contract.errors import InvalidCollective
from hdp.contract.zipping import zip_strict
from hdp.tensorflow import loss_scale
from hdp.tensorflow.compression import Compression
from hdp.tensorflow.functions import Average
from hdp.tensorflow.gradients import Reduction, reduction


def DistributedOptimizer(  # noqa: N802 - the name that Horovod and SMDDP gave it
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: str = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = True,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    bucket_cap_mb: float = 25,
) -> Any:
    """`optimizer` itself, which from now on averages (or sums) gradients over all ranks before it applies them.

    optimizer: Keras 3's, Keras 2's (tf-keras, and what TensorFlow up to 2.15 has), or TensorFlow 1's; new or in use. A
    LossScaleOptimizer may be given, or be put round the result: all ranks skip a step where one has an infinity.
    backward_passes_per_step: on each rank the gradients of so many steps are averaged, then combined and applied:
    Keras 3's gradient_accumulation_steps. Other keywords: see `DistributedGradientTape`. Raises InvalidCollective.
    """
    passes = _passes(backward_passes_per_step)
    reduce = reduction(
        "DistributedOptimizer",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        bucket_cap_mb=bucket_cap_mb,
        name=(name, None),
        use_locking=(use_locking, False),
        device_dense=(device_dense, ""),
        device_sparse=(device_sparse, ""),
        average_aggregated_gradients=(average_aggregated_gradients, True),
        num_groups=(num_groups, 0),
        groups=(groups, None),
        process_set=(process_set, None),
        scale_local_gradients=(scale_local_gradients, True),
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_tensorflow_1(optimizer, reduce, passes)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if is_distributed(inner):
        raise InvalidCollective(f"this {type(inner).__name__} is distributed already; call DistributedOptimizer once")
    if hasattr(inner, "apply"):
        _of_keras_3(inner, reduce, passes)
    elif hasattr(inner, "apply_gradients"):
        _of_keras_2(inner, reduce, passes)
    else:
        raise InvalidCollective(f"{type(inner).__name__} is no optimizer of Keras or TensorFlow")
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or the one within it, reduces gradients over all ranks."""
    return hasattr(getattr(optimizer, "inner_optimizer", optimizer), "_hdp_reduce")


# ---- Keras 3 ---------------------------------------------------------------------------------------------------------


def _of_keras_3(optimizer: Any, reduce: Reduction, passes: int) -> None:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise InvalidCollective(f"Keras runs on {keras.backend.backend()}; DistributedOptimizer is for TensorFlow's")
    if not hasattr(optimizer, "_clip_gradients"):
        raise InvalidCollective(f"Keras {keras.__version__} isn't known: its optimizers have no _clip_gradients")
    if passes != 1:
        _accumulate(optimizer, passes)
    loss_scale.guard()
    plain = type(optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        floating = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
        if floating:
            raise InvalidCollective(f"float8 isn't supported: {floating[0]!r} is a scale of this rank alone")
        grads = list(grads)
        # Past Keras's attributes: it would take the model's variables for the optimizer's own.
        self.__dict__["_hdp_given"] = list(zip(grads, variables))
        try:
            return plain.apply(self, grads, None if trainable_variables is None else variables)
        finally:
            del self.__dict__["_hdp_given"]

    def _clip_gradients(self: Any, grads: Any) -> Any:
        """After gradients were accumulated, and before they are clipped. Keras has left out those that are None."""
        if loss_scale.were_reduced(self):
            return plain._clip_gradients(self, grads)
        left, given = iter(grads), self.__dict__["_hdp_given"]
        found = [None if gradient is None else next(left) for gradient, _ in given]
        reduced = reduce(found, [variable for _, variable in given])
        return plain._clip_gradients(self, [gradient for gradient in reduced if gradient is not None])

    _become(optimizer, reduce, apply, _clip_gradients)
    _save_as(plain, type(optimizer))


def _save_as(plain: type, made: type) -> None:
    """Let Keras write `made` as it writes `plain`."""
    import keras

    if getattr(keras.optimizers, plain.__name__, None) is plain:
        made.__module__ = keras.optimizers.__name__
    registered = keras.saving.get_registered_name(plain)
    if ">" in registered:
        keras.saving.register_keras_serializable(*registered.split(">", 1))(made)
        keras.saving.get_custom_objects()[registered] = plain


def _accumulate(optimizer: Any, passes: int) -> None:
    said = optimizer.gradient_accumulation_steps
    if said not in (None, passes):
        raise InvalidCollective(
            f"backward_passes_per_step is {passes}, and the optimizer's gradient_accumulation_steps {said}; "
            "say one of them"
        )
    if optimizer.built and said is None:
        raise InvalidCollective(
            f"backward_passes_per_step is {passes}, and the optimizer is in use; make it with "
            "gradient_accumulation_steps="
        )
    optimizer.gradient_accumulation_steps = passes


# ---- Keras 2 ---------------------------------------------------------------------------------------------------------


def _of_keras_2(optimizer: Any, reduce: Reduction, passes: int) -> None:
    if passes != 1:
        raise InvalidCollective("backward_passes_per_step isn't supported with Keras 2's optimizers; use Keras 3")
    plain = type(optimizer)
    legacy = hasattr(optimizer, "_aggregate_gradients")
    skip = {"experimental_aggregate_gradients": False} if legacy else {"skip_gradients_aggregation": True}

    def reduced(grads_and_vars: Any) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        return list(zip_strict(reduce([gradient for gradient, _ in pairs], variables), variables))

    def apply_gradients(
        self: Any,
        grads_and_vars: Any,
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Unless the caller has reduced them: the script, or a LossScaleOptimizer round this one."""
        if not skip_gradients_aggregation and experimental_aggregate_gradients:
            grads_and_vars = reduced(grads_and_vars)
        return plain.apply_gradients(self, grads_and_vars, name=name, **skip)

    def aggregate(self: Any, grads_and_vars: Any) -> Any:  # noqa: ARG001 - a method
        """What a LossScaleOptimizer calls before it looks for infinities: a rank's is then every rank's."""
        return reduced(grads_and_vars)

    aggregate.__name__ = "_aggregate_gradients" if legacy else "aggregate_gradients"
    _become(optimizer, reduce, apply_gradients, aggregate)


# ---- TensorFlow 1 ----------------------------------------------------------------------------------------------------


def _of_tensorflow_1(optimizer: Any, reduce: Reduction, passes: int) -> Any:
    if passes != 1:
        raise InvalidCollective("backward_passes_per_step isn't supported with TensorFlow 1's optimizers")
    if is_distributed(optimizer):
        raise InvalidCollective(f"this {type(optimizer).__name__} is distributed already")
    plain = type(optimizer)

    def compute_gradients(self: Any, *arguments: Any, **keywords: Any) -> Any:
        pairs = plain.compute_gradients(self, *arguments, **keywords)
        variables = [variable for _, variable in pairs]
        return list(zip_strict(reduce([gradient for gradient, _ in pairs], variables), variables))

    _become(optimizer, reduce, compute_gradients)
    return optimizer


# ---- what they share -------------------------------------------------------------------------------------------------


def _become(optimizer: Any, reduce: Reduction, *methods: Callable[..., Any]) -> None:
    """Give `optimizer` a class of its own, with `methods`, under its class's name."""
    plain = type(optimizer)
    kept = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    replaced = {method.__name__: tf.autograph.experimental.do_not_convert(method) for method in methods}
    metaclass: Any = type(plain)
    made = metaclass(plain.__name__, (plain,), {**kept, **replaced, "_hdp_reduce": reduce})
    object.__setattr__(optimizer, "__class__", made)


def _passes(passes: int) -> int:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise InvalidCollective(f"backward_passes_per_step is {passes!r}; expected 1 or more")
    return passes
