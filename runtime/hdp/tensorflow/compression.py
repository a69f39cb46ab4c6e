"""What gradients travel as: Horovod's and SMDDP's ``compression=``."""

from __future__ import annotations


class Compression:
    """``compression=Compression.fp16``: half the bytes between hosts.

    Horovod casts and adds in float16. Here float32 is added as float32 inside a host, rounded for the link, and added
    as float32 again: the same bytes, less error. float16, bfloat16 and float64 travel as they are.
    """

    none = "float32"
    fp16 = "float16"
    bf16 = "bfloat16"
