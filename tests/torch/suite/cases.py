"""PyTorch's own suite for backends, from its wheel, as test cases for one backend.

What a test does is PyTorch's. What is changed here, for every backend alike, is who may run it and how it starts:

- Decorators are evaluated as for gloo, so that whatever gloo must pass is run; then the backend takes its place.
- `LIFTED` are skips that are about other backends than the one that runs.
- Tests of the group [1, 2] skip below 8 ranks, for want of GPUs upstream; here they need 3.
- Tests that need a GPU are skipped before they start processes.
- Ranks are forked from a process that has imported torch, which saves seconds a test; as spawned ones do, they run
  what was registered with atexit.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import types
import unittest
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

#: Skips that don't hold: these calls exist on CPU tensors elsewhere too.
LIFTED = ("Only MPI supports CPU all_to_all_single", "Only MPI supports all_to_all")
#: Smallest group that has the ranks 1 and 2.
SMALL_WORLD = 3


class _InPlaceOfGloo(str):
    """A backend's name that takes the branch ``BACKEND == "gloo"`` inside a test: the one with CPU tensors."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, str(other))

    def __hash__(self) -> int:
        return str.__hash__(self)


def load(backend: str, ranks: int, seconds: int) -> type[unittest.TestCase]:
    """The suite's test case class for `backend` with `ranks` ranks. A test is told to end after `seconds`.

    Once a process: it changes torch's test modules and the environment.
    """
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(seconds))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.TIMEOUT_OVERRIDE = {}
    _decide_skips(common, ranks)
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    suite.BACKEND = _InPlaceOfGloo(backend)
    os.environ["BACKEND"] = backend
    return _case(suite)


def names(case: type[unittest.TestCase]) -> list[str]:
    """All tests, in order."""
    return sorted(n for n in dir(case) if n.startswith("test_"))


def _decide_skips(common: types.ModuleType, ranks: int) -> None:
    utils = importlib.import_module("torch.testing._internal.common_utils")
    original = utils.skip_but_pass_in_sandcastle_if
    utils.skip_but_pass_in_sandcastle_if = lambda condition, reason: original(
        condition and reason not in LIFTED, reason
    )
    gpus = importlib.import_module("torch").cuda.device_count()
    few = f"needs {SMALL_WORLD} ranks"
    common.skip_if_small_worldsize = unittest.skipIf(ranks < SMALL_WORLD, few)
    common.skip_if_no_gpu = unittest.skipIf(gpus < ranks, "needs a GPU a rank")
    common.skip_if_lt_x_gpu = lambda count, **_: unittest.skipIf(gpus < count, f"needs {count} GPUs")


def _case(suite: types.ModuleType) -> type[unittest.TestCase]:
    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        """One backend."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(_forked)

    return Suite


def _forked(target: Callable[..., Any], **more: Any) -> Any:
    """A rank's process, not started yet."""
    import torch.multiprocessing as mp

    @wraps(target)
    def run(*arguments: Any, **named: Any) -> None:
        atexit.unregister(weakref.finalize._exitfunc)  # type: ignore[attr-defined]  # the parent's folders
        try:
            target(*arguments, **named)
        finally:
            sys.stdout.flush()
            atexit._run_exitfuncs()

    return mp.get_context("fork").Process(target=run, **more)
