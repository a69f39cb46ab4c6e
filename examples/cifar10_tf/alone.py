"""What a library for data parallelism is to one process: nothing. ``--dist none`` has it in the library's place."""

Min = None


def init() -> None:
    pass


def size() -> int:
    return 1


def rank() -> int:
    return 0


def local_rank() -> int:
    return 0


def allreduce(tensor, op=None):
    del op
    return tensor


def DistributedGradientTape(tape):  # noqa: N802 - the libraries' name
    return tape


def DistributedOptimizer(optimizer):  # noqa: N802 - the libraries' name
    return optimizer
