"""SMDDP's import path: ``import`` this, then ``init_process_group(backend="smddp")``. Served by hdp."""

from hdp.torch.register import register

register("hdp")
register("smddp")
