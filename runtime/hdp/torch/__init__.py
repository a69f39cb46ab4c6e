"""``torch.distributed`` backend ``"hdp"``.

    import torch.distributed as dist

    dist.init_process_group("hdp")      # found by entry point; `import hdp.torch` does the same by hand

Works under hdp's launcher and under plain ``torchrun``. This package imports nothing but what registering needs.
"""

from hdp.torch.register import register

__all__ = ["register"]

register("hdp")
