"""Training on several ranks is that of one process with all of the batch."""

from training_support import (
    WithTape,
    by_hand,
    compare,
    data,
    fit,
    keras,
    make_model,
    mine,
    optimizers,
    reference,
    started,
)

import hdp.keras
import hdp.tensorflow as dist


def case_equal():
    """Each optimizer, in each way of training."""
    x, y = (mine(batches) for batches in data())
    for name, make in optimizers().items():
        expected = reference(make())
        for way in ("eager", "graph"):
            model = started()
            by_hand(model, make(), x, y, tape_of=dist.DistributedGradientTape, compiled=way == "graph")
            compare(model, expected, f"{name}, {way}")
        for way in ("tape", "optimizer"):
            model = make_model(WithTape if way == "tape" else None)
            optimizer = make() if way == "tape" else dist.DistributedOptimizer(make())
            fit(model, optimizer, x, y, callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0)])
            compare(model, expected, f"{name}, fit with {way}")


def case_quick():
    """One optimizer, in two ways."""
    x, y = (mine(batches) for batches in data())
    expected = reference(keras.optimizers.Adam(0.01))
    model = started()
    by_hand(model, keras.optimizers.Adam(0.01), x, y, tape_of=dist.DistributedGradientTape, compiled=True)
    compare(model, expected, "with a tape")
    model = make_model()
    optimizer = dist.DistributedOptimizer(keras.optimizers.Adam(0.01))
    fit(model, optimizer, x, y, callbacks=[hdp.keras.BroadcastGlobalVariablesCallback(0)])
    compare(model, expected, "in fit")
