"""A TCP proxy between the hosts' servers that does to their connections what networks do, and worse.

`FaultProxy(faults).route` goes to `Cluster`: every server then sees the proxy's ports in place of the other servers'.
One thread runs everything. A connection is two `Stream`s, one for each direction. A stream forwards bytes unchanged
until it comes to the position of its next fault; faults are drawn beforehand (`faults.py`), so a seed tells all.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import selectors
import socket
import struct
import threading
import time

from faults import Kind, damage

_READ_BYTES = 64 << 10
_QUEUE_BYTES = 256 << 10  # a stream that holds so many doesn't read on
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PATIENCE_SECONDS = 5


class FaultProxy:
    """Listens on loopback for every pair of servers, from construction until `close`.

    seen: a dictionary that gets what passes, by direction: 0 is what the dialers send.
    """

    def __init__(self, faults=(), seen=None):
        self.faults, self.seen = list(faults), seen
        self.fired = []  # (fault, position in its stream, monotonic seconds), in order
        self._selector = selectors.DefaultSelector()
        self._timers, self._ticks = [], itertools.count()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._tasks, self._running = [], True
        self._listeners, self._streams = [], []
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    def route(self, index, hosts):
        """The hosts as server `index` sees them: those that it dials are behind the proxy."""
        seen = [dict(host) for host in hosts]
        for other in range(index):
            target = (hosts[other]["address"], hosts[other]["port"])
            seen[other]["address"], seen[other]["port"] = self.listen(target, (index, other))
        return seen

    def listen(self, target, link):
        """A new address; who connects to it is connected to `target`."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._do(lambda: self._serve(listener, target, link))
        return listener.getsockname()

    def start_clock(self):
        """Faults with a time count from here."""
        self._do(self._start_clock)

    def strike(self, fault):
        """Let `fault` happen to a connection that is there, `fault.offset` bytes from where its stream is by now."""
        self._do(lambda: self._strike(fault))

    def close(self):
        """Close all connections. Raises what went wrong in the proxy itself."""
        self._running = False
        self._do(lambda: None)
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        for stream in self._streams:
            stream.end()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._wake)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _do(self, task):
        self._tasks.append(task)
        os.eventfd_write(self._wake, 1)

    def _run(self):
        while self._running:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, events in self._selector.select(wait):
                key.data(events)
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def _woken(self, _):
        os.eventfd_read(self._wake)
        while self._tasks:
            self._tasks.pop(0)()

    def at(self, seconds, action):
        """Run `action` in so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, self.tick(), action))

    def tick(self):
        """A number that grows: what is pushed first comes first."""
        return next(self._ticks)

    def watch(self, sock, events, action):
        """Call `action` with those of `events` that `sock` has."""
        known = sock in self._selector.get_map()
        if events and known:
            self._selector.modify(sock, events, action)
        elif events:
            self._selector.register(sock, events, action)
        elif known:
            self._selector.unregister(sock)

    def _start_clock(self):
        for fault in self.faults:
            if fault.after is not None:
                self.at(fault.after, functools.partial(self._strike, fault))

    def _strike(self, fault):
        for stream in self._streams:
            if (stream.link, stream.direction) == (fault.link, fault.direction) and not stream.closed:
                stream.add(fault, stream.position + fault.offset)
                stream.work()
                return

    def _serve(self, listener, target, link):
        self._listeners.append(listener)
        numbers = itertools.count()
        self.watch(listener, selectors.EVENT_READ, lambda _: self._accept(listener, target, link, numbers))

    def _accept(self, listener, target, link, numbers):
        near, _ = listener.accept()
        try:
            far = socket.create_connection(target, timeout=_PATIENCE_SECONDS)
        except OSError:
            near.close()
            return
        number = next(numbers)  # of those that reached the target
        there, back = Stream(self, link, 0, near, far), Stream(self, link, 1, far, near)
        there.other, back.other = back, there
        for stream in (there, back):
            self._streams.append(stream)
            stream.source.setblocking(False)
            stream.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for fault in self.faults:
                place = (fault.link, fault.direction, fault.connection)
                if fault.after is None and place == (link, stream.direction, number):
                    stream.add(fault, fault.offset)
        for stream in (there, back):
            if not stream.closed:
                stream.work()


class Stream:
    """One direction of a connection: what `source` sends goes to `sink`."""

    def __init__(self, proxy, link, direction, source, sink):
        self.proxy, self.link, self.direction, self.source, self.sink = proxy, link, direction, source, sink
        self.other = None  # the other direction, whose source is our sink
        self.position = 0  # bytes of the source that have been seen to
        self.closed = False
        self._faults = []  # (position, tie-breaker, fault)
        self._in, self._out = b"", bytearray()  # before and after the faults
        self._eof = self._sent_eof = False  # the source has ended; the sink has been told
        self._paused = False
        self._muted = None  # Kind.STALL: don't read; Kind.SWALLOW: read and forget
        self._slow = (0, None)  # up to that position, in pieces and with pauses as that fault says

    def add(self, fault, position):
        """Let `fault` happen at `position`, or now where that has passed."""
        heapq.heappush(self._faults, (position, self.proxy.tick(), fault))

    def arm(self):
        """Say to the selector what both directions wait for at `source`."""
        if self.closed:
            return
        reads = not (self._eof or self._paused or self._muted is Kind.STALL or len(self._out) > _QUEUE_BYTES)
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self.other._out else 0)
        self.proxy.watch(self.source, events, self._ready)

    def _ready(self, events):
        try:
            if events & selectors.EVENT_WRITE:
                self.other.work()
            if events & selectors.EVENT_READ and not self.closed:
                self._read()
        except BlockingIOError:
            pass
        except OSError:  # one end is gone without a goodbye: so it is for the other
            self.end(reset=True)

    def _read(self):
        data = self.source.recv(_READ_BYTES)
        if self.proxy.seen is not None:
            self.proxy.seen.setdefault(self.direction, bytearray()).extend(data)
        self._eof = not data
        if self._muted is not Kind.SWALLOW:
            self._in += data
        self.work()

    def work(self):
        """Take what was read through the faults that it reaches, and write what the sink takes."""
        while not (self._paused or self._muted or self.closed):
            if self._faults and self._faults[0][0] <= self.position:
                if len(self._in) < self._faults[0][2].kind.least_bytes:
                    break
                self._fire(heapq.heappop(self._faults)[2])
            elif self._in:
                self._pass_on()
            else:
                break
        if not self.closed:
            self._write()
            self.arm()
            self.other.arm()

    def _pass_on(self):
        reach = self._faults[0][0] - self.position if self._faults else len(self._in)
        end, fault = self._slow
        slow = self.position < end
        if slow:
            reach = min(reach, fault.segment)
        self._emit(self._in[:reach], min(reach, len(self._in)))
        if slow:
            self._write()
            self._pause(fault.pause(self.position))

    def _emit(self, data, consumed):
        self._in = self._in[consumed:]
        self.position += consumed
        self._out += data

    def _pause(self, seconds):
        self._paused = True
        self.proxy.at(seconds, self._resume)

    def _resume(self):
        self._paused = False
        self.work()

    def _write(self):
        try:
            if self._out:
                del self._out[: self.sink.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            return self.end(reset=True)
        if self._eof and not (self._in or self._out or self._sent_eof or self._muted):
            self._say_eof()
        if self._sent_eof and self.other._sent_eof:
            self.end()

    def _say_eof(self):
        self._sent_eof = True
        with contextlib.suppress(OSError):  # it is gone already
            self.sink.shutdown(socket.SHUT_WR)

    def _fire(self, fault):
        self.proxy.fired.append((fault, self.position, time.monotonic()))
        if fault.kind.corrupts:
            run = self._in[: fault.length]
            self._emit(damage(fault, run), len(run))
        elif fault.kind is Kind.DELAY:
            self._pause(fault.seconds)
        elif fault.kind.harmless:
            self._slow = (self.position + fault.length, fault)
        else:
            self._write()
            if not self.closed:
                self._break(fault)

    def _break(self, fault):
        if fault.kind in (Kind.RESET, Kind.TRUNCATE):
            self.end(reset=fault.kind is Kind.RESET)
        elif fault.kind is Kind.HALF_CLOSE:
            self._muted = Kind.SWALLOW
            self._say_eof()
        else:
            for stream in (self, self.other) if fault.both else (self,):
                stream._muted = fault.kind
                stream.arm()

    def end(self, reset=False):
        """Close the connection: with RST, or in order."""
        for stream in (self, self.other):
            if not stream.closed:
                stream.closed = True
                self.proxy.watch(stream.source, 0, None)
                if reset:
                    stream.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                stream.source.close()
