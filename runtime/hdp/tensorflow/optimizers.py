"""`DistributedOptimizer`: an optimizer that applies the gradients of all ranks.

A subclass of the optimizer's own class is made for it, under the same name, so that a saved model names the plain
class and loads where hdp isn't installed.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hdp.contract.errors import InvalidCollective
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
    """An optimizer like `optimizer` that averages (or sums) gradients over all ranks before it applies them.

    optimizer: Keras 3's, Keras 2's (tf-keras, and what TensorFlow up to 2.15 has), or TensorFlow 1's; new or in use.
    backward_passes_per_step: gradients are aggregated so often on each rank, then combined and applied; Keras 3's
    gradient_accumulation_steps does the same. Other keywords: see `DistributedGradientTape`. Raises
    InvalidCollective.
    """
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
        return _of_tensorflow_1(optimizer, reduce, backward_passes_per_step)
    if hasattr(optimizer, "_hdp_reduce"):
        raise InvalidCollective("this optimizer is distributed already")
    if hasattr(optimizer, "apply"):
        return _of_keras_3(optimizer, reduce, backward_passes_per_step)
    if hasattr(optimizer, "apply_gradients"):
        return _of_keras_2(optimizer, reduce, backward_passes_per_step)
    raise InvalidCollective(f"{type(optimizer).__name__} is no optimizer of Keras or TensorFlow")


# ---- Keras 3 ---------------------------------------------------------------------------------------------------------


def _of_keras_3(optimizer: Any, reduce: Reduction, passes: int) -> Any:
    import keras

    scales = keras.optimizers.LossScaleOptimizer
    config = optimizer.get_config()
    if passes != 1:
        if isinstance(optimizer, scales):
            raise InvalidCollective("say gradient_accumulation_steps= of the optimizer within the LossScaleOptimizer")
        if config.get("gradient_accumulation_steps") not in (None, passes):
            raise InvalidCollective(
                f"backward_passes_per_step is {passes}, and the optimizer's gradient_accumulation_steps "
                f"{config['gradient_accumulation_steps']}; say one of them"
            )
        config["gradient_accumulation_steps"] = _passes(passes)
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(optimizer, scales):
        # compile() would put one round ours, and ranks would disagree on whose gradients are finite
        optimizer = scales(type(optimizer).from_config(config))
        config = optimizer.get_config()
    if isinstance(optimizer, scales):
        return _with(optimizer, {"apply": _keras_3_apply}, reduce, config)
    if "_clip_gradients" not in dir(optimizer):
        raise InvalidCollective(f"Keras {keras.__version__} isn't known: its optimizers have no _clip_gradients")
    return _with(optimizer, {"_clip_gradients": _keras_3_clip, "apply": _keras_3_remember}, reduce, config)


def _keras_3_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Before the finite ones among scaled gradients are looked for: a rank's infinity is then every rank's."""
    variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
    return super(type(self), self).apply(self._hdp_reduce(list(grads), variables), trainable_variables)


def _keras_3_remember(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
    self._hdp_given = [(variable, gradient is None) for variable, gradient in zip(variables, grads, strict=True)]
    return super(type(self), self).apply(grads, trainable_variables)


def _keras_3_clip(self: Any, grads: Any) -> Any:
    """After gradients were accumulated, and before they are clipped. Keras has left out those that are None."""
    left, found = iter(grads), []
    for variable, missing in self._hdp_given:
        if missing:
            found.append((variable, None))
        elif not getattr(variable, "overwrite_with_gradient", False):
            found.append((variable, next(left)))
    reduced = self._hdp_reduce([gradient for _, gradient in found], [variable for variable, _ in found])
    return super(type(self), self)._clip_gradients([gradient for gradient in reduced if gradient is not None])


# ---- Keras 2 ---------------------------------------------------------------------------------------------------------


def _of_keras_2(optimizer: Any, reduce: Reduction, passes: int) -> Any:
    if passes != 1:
        raise InvalidCollective("backward_passes_per_step isn't supported with Keras 2's optimizers; use Keras 3")
    return _with(optimizer, {"apply_gradients": _keras_2_apply}, reduce, optimizer.get_config())


def _keras_2_apply(self: Any, grads_and_vars: Any, *arguments: Any, **keywords: Any) -> Any:
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]
    grads = self._hdp_reduce([gradient for gradient, _ in pairs], variables)
    return super(type(self), self).apply_gradients(list(zip(grads, variables, strict=True)), *arguments, **keywords)


# ---- TensorFlow 1 ----------------------------------------------------------------------------------------------------


def _of_tensorflow_1(optimizer: Any, reduce: Reduction, passes: int) -> Any:
    if passes != 1:
        raise InvalidCollective("backward_passes_per_step isn't supported with TensorFlow 1's optimizers")

    class Distributed(type(optimizer)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(optimizer.__dict__)

        def compute_gradients(self, *arguments: Any, **keywords: Any) -> Any:
            pairs = optimizer.compute_gradients(*arguments, **keywords)
            variables = [variable for _, variable in pairs]
            return list(zip(reduce([gradient for gradient, _ in pairs], variables), variables, strict=True))

    return _named_as(Distributed, type(optimizer))()


# ---- what they share -------------------------------------------------------------------------------------------------


def _with(optimizer: Any, methods: dict[str, Any], reduce: Reduction, config: Any) -> Any:
    """An optimizer with `config`, and with `methods` in place of its class's. One in use keeps its slots."""
    plain = type(optimizer)
    made: Any = _named_as(type(plain.__name__, (plain,), {**methods, "_hdp_reduce": reduce}), plain)
    if getattr(optimizer, "built", False) and config == optimizer.get_config():
        optimizer.__class__ = made
        return optimizer
    return made.from_config(config)


def _named_as(made: type, original: type) -> type:
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(made, attribute, getattr(original, attribute))
    return made


def _passes(passes: int) -> int:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise InvalidCollective(f"backward_passes_per_step is {passes!r}; expected 1 or more")
    return passes
