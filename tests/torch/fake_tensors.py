"""CPU tensors that stand for a GPU's, behind the fake driver that ``$HDP_CUDA_DRIVER`` names.

The library sees device memory: it copies by streams of the fake driver's, which take their time. What torch does with a
CPU tensor happens at once in the calling thread, as if its stream were empty; so `FakeCuda.on` lets the stream run dry
before work is "put into" it, and `install` does the same after each ``wait()``, unless a test wants to see what comes
before that.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import threading

import torch

from hdp.torch import process_group
from hdp.torch.devices import Cuda
from hdp.torch.work import HdpWork


class Driver:
    """The calls of the driver that a user's program would make."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ["HDP_CUDA_DRIVER"])
        self._call("cuInit", 0)
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def _call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        assert status == 0, f"{name}: CUDA error {status}"

    def _enter(self):
        self._call("cuCtxSetCurrent", self._context)

    def stream(self):
        """A new stream that doesn't wait for the default one."""
        self._enter()
        made = ctypes.c_void_p()
        self._call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)
        return made.value

    def synchronize(self, stream):
        """Wait until the stream is empty."""
        self._enter()
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def record(self, stream):
        """An event after what is in the stream."""
        self._enter()
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), 2)
        self._call("cuEventRecord", made, ctypes.c_void_p(stream))
        return made

    def wait(self, stream, event):
        """The stream waits for an event."""
        self._enter()
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)

    def fail(self, function, nth):
        """The n-th call of a function of the driver's from now on fails."""
        self._library.fake_cuda_fail(function.encode(), ctypes.c_uint64(nth))

    def run(self, stream, function):
        """The stream calls `function`, which must be kept; it is a ``HostFunction``."""
        self._enter()
        self._call("cuLaunchHostFunc", ctypes.c_void_p(stream), function, None)


HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class FakeCuda(Cuda):
    """Takes the CPU tensors that `taken` says for tensors of device 0."""

    def __init__(self, taken, driver):
        super().__init__()
        self.driver = driver
        self.taken = taken
        self.is_capturing = False
        self.devices = 1
        self.recorded = []
        self.dry = False
        self._thread = threading.local()
        self._pool = itertools.cycle([driver.stream() for _ in range(8)] if driver else [0])

    def ordinal(self, tensor):
        return 0 if self.taken(tensor) else None

    def count(self):
        return self.devices

    def identity(self, device):
        return f"fake {device}"

    def capturing(self):
        return self.is_capturing

    def current(self, device):
        return getattr(self._thread, "stream", 0)

    def side(self, device):
        if device not in self._sides:
            self._sides[device] = self.stream(device)
        return self._sides[device]

    def stream(self, device):
        return self.driver.stream()

    def finish(self, stream):
        self.driver.synchronize(stream)

    def handle(self, stream):
        return stream

    @contextlib.contextmanager
    def on(self, stream):
        before, self._thread.stream = self.current(0), stream
        try:
            self.driver.synchronize(stream)
            yield
        finally:
            self._thread.stream = before

    def record(self, stream):
        return self.driver.record(stream)

    def wait(self, stream, event):
        self.driver.wait(stream, event)

    def used(self, tensors, stream):
        self.recorded += [(t.data_ptr(), stream) for t in tensors]

    def future(self, device):
        return torch.futures.Future()

    def in_the_pool(self, method):
        """`method` of torch's futures, with callbacks that run in streams of a pool, as those with devices do."""

        @functools.wraps(method)
        def added(future, callback):
            def run(complete):
                with self.on(next(self._pool)):
                    return callback(complete)

            return method(future, run)

        return added

    @contextlib.contextmanager
    def only(self, taken):
        """Inside, other tensors are the device's."""
        before, self.taken = self.taken, taken
        try:
            yield
        finally:
            self.taken = before

    @contextlib.contextmanager
    def undrained(self):
        """Inside, a ``wait()`` returns as it would with a real device."""
        before, self.dry = self.dry, False
        try:
            yield
        finally:
            self.dry = before


def install(taken=lambda _: True, dry=True):
    """Process groups that are made from now on take the CPU tensors that `taken` says for a device's.

    dry: after each ``wait()`` the current stream is empty, so that what a test reads is what the stream would.
    """
    fake = process_group._cuda = FakeCuda(taken, Driver())
    fake.dry = dry
    waits = HdpWork.wait

    def wait(self, *timeout):
        done = waits(self, *timeout)
        if self.on_device and fake.dry:
            fake.driver.synchronize(fake.current(0))
        return done

    HdpWork.wait = wait
    for method in ("then", "add_done_callback"):
        setattr(torch._C.Future, method, fake.in_the_pool(getattr(torch._C.Future, method)))
    return fake


def without_driver():
    """As `install`, where the driver can't be loaded."""
    fake = process_group._cuda = FakeCuda(lambda _: True, None)
    return fake
