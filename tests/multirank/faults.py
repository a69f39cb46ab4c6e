"""What the fault proxy does to a connection, and how faults are drawn from a seed."""

from __future__ import annotations

import dataclasses
import enum
import random
from dataclasses import dataclass


class Kind(enum.Enum):
    """What happens to the bytes from a position on."""

    # Slow, but every byte arrives as it was sent: no operation may fail of it.
    DELAY = "delay"  # nothing for `seconds`
    JITTER = "jitter"  # for `length` bytes, a pause of up to `seconds` after every piece of up to `segment` bytes
    TRICKLE = "trickle"  # the same with pieces of a few bytes
    # The connection breaks.
    RESET = "reset"  # both ends get an RST
    TRUNCATE = "truncate"  # both ends get a FIN
    HALF_CLOSE = "half-close"  # the receiver gets a FIN; what the sender goes on to send is lost
    STALL = "stall"  # nothing more is read; the connection stays open
    SWALLOW = "swallow"  # all is read, nothing arrives; the connection stays open
    # Bytes arrive that were not sent so. `length` says how many at most.
    FLIP = "flip"  # one bit
    OVERWRITE = "overwrite"
    DUPLICATE = "duplicate"
    REORDER = "reorder"  # two halves change places
    DELETE = "delete"

    @property
    def harmless(self):
        return self in SLOW

    @property
    def corrupts(self):
        return self in CORRUPTING

    @property
    def least_bytes(self):
        """What must have been read for it to happen."""
        return 2 if self is Kind.REORDER else int(self.corrupts)


SLOW = frozenset({Kind.DELAY, Kind.JITTER, Kind.TRICKLE})
CORRUPTING = frozenset({Kind.FLIP, Kind.OVERWRITE, Kind.DUPLICATE, Kind.REORDER, Kind.DELETE})
BREAKING = frozenset(Kind) - SLOW - CORRUPTING

#: The handshake takes about 200 bytes of the dialer's stream and 80 of the listener's.
_HANDSHAKE_BYTES = 200
_SMALL_BYTES = 10_000  # announcements and grants of a short program
_DATA_BYTES = 3_000_000


@dataclass(frozen=True)
class Fault:
    """One thing that happens to the connection `connection` (in order of arrival) of a pair of servers."""

    kind: Kind
    link: tuple[int, int]  # who dials, who listens
    direction: int = 0  # 0: what the dialer sends, 1: what the listener sends
    connection: int = 0
    offset: int = 0  # byte of the stream where it happens
    after: float | None = None  # seconds from the proxy's clock; then `offset` counts from where the stream is then
    seconds: float = 0.0
    length: int = 1
    segment: int = 1
    both: bool = False  # STALL, SWALLOW: the other direction too
    seed: int = 0

    def pause(self, position):
        """Seconds after the piece that ends at `position`."""
        return random.Random(f"{self.seed} {position}").random() * self.seconds


def damage(fault, run):
    """What arrives in place of the bytes `run`."""
    rng = random.Random(fault.seed)
    middle = len(run) // 2
    if fault.kind is Kind.FLIP:
        return bytes([run[0] ^ (1 << rng.randrange(8))]) + run[1:]
    if fault.kind is Kind.OVERWRITE:
        return rng.randbytes(len(run))
    if fault.kind is Kind.DUPLICATE:
        return run + run
    if fault.kind is Kind.REORDER:
        return run[middle:] + run[:middle]
    assert fault.kind is Kind.DELETE
    return b""


def draw(rng, num_hosts, kinds=frozenset(Kind), seconds=2.0):
    """Faults of one round: none, or slow ones, or one that breaks or corrupts with up to two slow ones.

    Sums of pauses stay under `seconds`, so that with an operation's limit well above that no slow fault may fail it.
    """
    slow = sorted(kinds & SLOW, key=str)
    hard = sorted(kinds - SLOW, key=str)
    chosen = []
    if hard and rng.random() < 0.75:
        chosen.append(rng.choice(hard))
    if slow:
        chosen += rng.choices(slow, k=rng.randrange(3))
    return [_draw_one(rng, kind, num_hosts, seconds / 2) for kind in chosen]


def _draw_one(rng, kind, num_hosts, seconds):
    dialer = rng.randrange(1, num_hosts)
    fault = Fault(
        kind,
        link=(dialer, rng.randrange(dialer)),
        direction=rng.randrange(2),
        length=rng.choice([1, 2, 5, 32, 200, 4096]),
        both=rng.random() < 0.5,
        seed=rng.randrange(1 << 32),
        **_draw_place(rng),
    )
    if kind is Kind.DELAY:
        return dataclasses.replace(fault, seconds=seconds * rng.random() ** 2)
    if kind is Kind.JITTER:
        pieces = rng.randint(1, 40)
        length = pieces * 10_000
        return dataclasses.replace(fault, length=length, segment=10_000, seconds=seconds / pieces)
    if kind is Kind.TRICKLE:
        segment, pieces = rng.choice([1, 1, 3, 31]), rng.randint(50, 400)
        return dataclasses.replace(fault, length=segment * pieces, segment=segment, seconds=seconds / pieces / 2)
    return fault


def _draw_place(rng):
    """In the handshake; in the first messages; anywhere in the data; or at a moment, in whatever is on its way."""
    where = rng.random()
    if where < 0.15:
        return {"offset": rng.randrange(_HANDSHAKE_BYTES)}
    if where < 0.35:
        return {"offset": rng.randrange(_HANDSHAKE_BYTES, _SMALL_BYTES)}
    if where < 0.6:
        return {"offset": int(_SMALL_BYTES * (_DATA_BYTES / _SMALL_BYTES) ** rng.random())}
    return {"after": 0.5 * rng.random() ** 2, "offset": rng.choice([0, 1, 30, 100, 100_000])}
