"""A rank's CUDA device that isn't there: libhdp_fake_cuda.so (runtime/csrc/tests/fake_cuda.h) through ctypes."""

import ctypes
import functools
import os

import fake_cuda_driver
import numpy as np

#: Bytes that uninitialised device memory is filled with, so that who copies too early has a wrong number.
STALE = 0x5A


@functools.cache
def load(gbps=0.0, latency_us=0, devices=1, **more):
    """The driver, loaded in this process; the core will find it. The first call's numbers count."""
    os.environ["HDP_CUDA_DRIVER"] = str(fake_cuda_driver.path())
    numbers = {"gbps": gbps, "latency_us": latency_us, "devices": devices, **more}
    for name, value in numbers.items():
        os.environ.setdefault(f"HDP_FAKE_CUDA_{name.upper()}", str(value))
    return Driver(ctypes.CDLL(str(fake_cuda_driver.path())))


class Driver:
    """What a program does with its device: streams, memory, and kernels that take their time."""

    def __init__(self, cdll):
        self.cdll = cdll
        cdll.fake_cuda_view.restype = ctypes.c_void_p
        cdll.fake_cuda_calls.restype = cdll.fake_cuda_flying.restype = ctypes.c_uint64
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)

    def call(self, function, *arguments):
        """Call a function of the driver; fails unless it succeeds."""
        result = getattr(self.cdll, function)(*arguments)
        assert result == 0, (function, result)

    def current(self):
        """Make the context this thread's."""
        self.call("cuCtxSetCurrent", self.context)

    def stream(self):
        """A new stream's handle."""
        self.current()
        handle = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(handle), 1, 0)
        return handle.value

    def synchronize(self, stream):
        """Wait for a stream."""
        self.current()
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def idle(self, stream):
        """Whether everything in a stream is done."""
        self.current()
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, ctypes.c_void_p(stream))
        result = self.cdll.cuEventQuery(event)
        self.call("cuEventDestroy_v2", event)
        return result == 0

    def empty(self, shape, dtype):
        """A `Buffer` of stale bytes."""
        return Buffer(self, shape, np.dtype(dtype))

    def write(self, stream, buffer, array, microseconds=0):
        """Put `array` into the buffer, by a kernel in the stream that takes that long."""
        origin = Buffer(self, array.shape, array.dtype)
        origin.view[...] = array
        self.copy(stream, buffer, origin, microseconds)
        buffer.keep.append(origin)

    def copy(self, stream, to, source, microseconds=0):
        """A kernel that copies a buffer."""
        self.current()
        if source.nbytes:
            arguments = (ctypes.c_uint64(v) for v in (to.address, source.address, source.nbytes, microseconds))
            self.call("fake_cuda_kernel_copy", ctypes.c_void_p(stream), *arguments)

    def fail(self, function, nth):
        """Let the n-th call from now on fail."""
        self.cdll.fake_cuda_fail(function.encode(), ctypes.c_uint64(nth))

    def calls(self, function):
        """Calls of a function so far."""
        return self.cdll.fake_cuda_calls(function.encode())

    def flying(self):
        """Copies in flight."""
        return self.cdll.fake_cuda_flying()


class Buffer:
    """Device memory. `address` can't be touched by the host; `view` is the same memory for tests."""

    def __init__(self, driver, shape, dtype):
        driver.current()
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        pointer = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, self.nbytes)))
        self.address, self.keep, self._driver = pointer.value, [], driver
        memory = (ctypes.c_uint8 * self.nbytes).from_address(driver.cdll.fake_cuda_view(pointer))
        raw = np.frombuffer(memory, np.uint8)
        raw[...] = STALE
        self.view = raw.view(dtype).reshape(shape)

    def free(self):
        """Give the memory back; nobody may use `view` any more."""
        self.view = None
        self._driver.current()
        self._driver.call("cuMemFree_v2", ctypes.c_uint64(self.address))
