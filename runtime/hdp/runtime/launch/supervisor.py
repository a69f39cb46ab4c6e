"""Starts this host's ranks and watches them.

Each rank is the leader of a session of its own. Its end is learnt from a pidfd, never from its pipes: what it forked
may hold them open. A rank that has left its exception but can't end (a thread, a destructor that hangs) counts as
failed after a few seconds (`Timing.hang`).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.outcome import Failure, RankOutcome
from hdp.contract.redact import secret_values
from hdp.runtime.launch import linux
from hdp.runtime.launch.failure import rank_failure, read_error_file, split_status
from hdp.runtime.launch.logs import LogWriter
from hdp.runtime.launch.pipes import Pipe
from hdp.runtime.launch.ranks import RankPlan
from hdp.runtime.launch.reactor import Reactor
from hdp.runtime.launch.writes import writes_file

log = logging.getLogger(__name__)

#: Lines of stderr that are kept of each rank, for a report.
STDERR_TAIL_LINES = 50
_LOOK_SECONDS = 0.5


class RankProcess:
    """One rank: its process, its pipes, how it ended."""

    def __init__(self, plan: RankPlan, process: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.stderr: deque[str] = deque(maxlen=STDERR_TAIL_LINES)
        self.pipes: list[Pipe] = []
        self.returncode: int | None = None
        self.ended = False
        self.reported = False
        self.told_to_stop: float | None = None
        self.seconds_after_stop: float | None = None
        self.killed = False
        self.error_since: float | None = None
        self.on_end: Callable[[int], None] | None = None

    @property
    def rank(self) -> int | None:
        """Rank in the job; None: it isn't one."""
        return self.plan.rank

    def outcome(self, checkpoints: Sequence[str]) -> RankOutcome:
        """How it ended."""
        code, by_signal = split_status(self.returncode) if self.returncode is not None else (None, None)
        return RankOutcome(self.rank, code, by_signal, self.seconds_after_stop, self.killed, tuple(checkpoints))


class Supervisor:
    """All ranks of this host. `on_failure` is called, in the loop, for each rank that fails by itself."""

    def __init__(
        self,
        reactor: Reactor,
        children: linux.Children,
        writer: LogWriter,
        host: str,
        *,
        on_failure: Callable[[Failure], None],
        hang_seconds: float,
    ) -> None:
        self._reactor = reactor
        self._children = children
        self._writer = writer
        self._host = host
        self._on_failure = on_failure
        self._hang_seconds = hang_seconds
        self.ranks: list[RankProcess] = []
        self._timer = reactor.every(_LOOK_SECONDS, self._look)

    @property
    def ended(self) -> bool:
        """Whether no rank runs any more."""
        return all(r.ended for r in self.ranks)

    @property
    def succeeded(self) -> bool:
        """Whether every rank has ended with exit code 0."""
        return all(r.returncode == 0 for r in self.ranks)

    def start(self, plans: Sequence[RankPlan], on_end: Callable[[int], None] | None = None) -> None:
        """Start the ranks. To be called from the main thread: a rank ends with the thread that starts it.

        on_end: called, in the loop, with the return code of each of them.
        """
        for plan in plans:
            try:
                process = self._children.spawn(
                    plan.argv, cwd=plan.cwd, env=plan.environ, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, pass_fds=plan.pass_fds,
                )  # fmt: skip
            except OSError as exc:
                what = "the script" if plan.rank is None else f"rank {plan.rank}"
                raise LaunchError(f"{what} can't be started as {plan.argv[:4]!r}: {exc}") from exc
            if plan.cpus:
                linux.bind(process.pid, plan.cpus)
            rank = RankProcess(plan, process)
            rank.on_end = on_end
            self._adopt(rank)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to each rank; where the rank is a shell, to its whole group, since shells don't pass it on."""
        for rank in self.ranks:
            if not rank.ended and rank.told_to_stop is None:
                rank.told_to_stop = time.monotonic()
                if rank.plan.shell:
                    linux.kill_group(rank.process.pid, signal.SIGTERM)
                else:
                    linux.send_signal(rank.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the process groups of the ranks that still run."""
        for rank in self.ranks:
            if not rank.ended:
                rank.killed = True
                linux.kill_group(rank.process.pid)

    def processes(self) -> dict[int | None, list[int]]:
        """Rank to its process IDs, of the ranks that still run."""
        found = linux.members([r.process.pid for r in self.ranks if not r.ended])
        return {r.rank: found[r.process.pid] for r in self.ranks if r.process.pid in found}

    def exit_codes(self) -> dict[int, int | None]:
        """Rank to its exit code, of the ranks that have ended; None: by a signal."""
        ended = [(r.rank, r.returncode) for r in self.ranks]
        return {rank: split_status(code)[0] for rank, code in ended if rank is not None and code is not None}

    def side_files(self) -> Mapping[int | None, Path]:
        """Rank to its list of writes."""
        return {r.rank: writes_file(r.plan.error_file) for r in self.ranks}

    def close(self) -> None:
        """Give out what is left in the pipes."""
        self._timer.cancel()
        for rank in self.ranks:
            for pipe in rank.pipes:
                pipe.close()

    def _adopt(self, rank: RankProcess) -> None:
        process = rank.process
        assert process.stdout is not None
        assert process.stderr is not None
        self.ranks.append(rank)

        def err(text: str) -> None:
            rank.stderr.append(text)
            self._writer.line(text, rank.rank)

        # dup: the pipe outlives the Popen object's own file.
        out_fd, err_fd = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        rank.pipes = [
            Pipe(self._reactor, out_fd, lambda text: self._writer.line(text, rank.rank)),
            Pipe(self._reactor, err_fd, err),
        ]
        self._reactor.watch(rank.pidfd, lambda: self._on_exit(rank))

    def _on_exit(self, rank: RankProcess) -> None:
        self._reactor.forget(rank.pidfd)
        os.close(rank.pidfd)
        rank.returncode = self._children.wait(rank.process)
        for pipe in rank.pipes:
            pipe.drain()
        self._settle(rank)
        if rank.returncode != 0 and not rank.reported:
            self._report(rank, rank.returncode)
        if rank.on_end is not None:
            rank.on_end(rank.returncode)

    def _settle(self, rank: RankProcess) -> None:
        """A shell's children are the rank too: when it was told to stop, they still write their checkpoint."""
        if rank.plan.shell and rank.told_to_stop and not rank.killed and linux.group_alive(rank.process.pid):
            return
        rank.ended = True
        if rank.told_to_stop is not None:
            rank.seconds_after_stop = round(time.monotonic() - rank.told_to_stop, 3)

    def abort(self, number: int, code: int) -> None:
        """The rank `number` has told its launcher to end the job, with this exit code; it needn't end by itself."""
        for rank in self.ranks:
            if rank.rank == number and not rank.reported:
                for pipe in rank.pipes:
                    pipe.drain()
                self._report(rank, code or 1, aborted=True)

    def _report(self, rank: RankProcess, returncode: int, *, aborted: bool = False) -> None:
        rank.reported = True
        error = read_error_file(rank.plan.error_file)
        if rank.told_to_stop is not None and not (error and error["exception"]):
            return  # ended by our signal, or by its own way of handling it
        failure = rank_failure(
            self._host,
            rank.rank,
            returncode,
            error=error,
            stderr=list(rank.stderr),
            ended=time.time(),
            hidden=secret_values(rank.plan.environ),
            silent_is_collateral=rank.plan.under_mpi and not aborted,
        )
        log.info("%s", failure.summary().partition("\n")[0])
        self._on_failure(failure)

    def _look(self) -> None:
        now = time.monotonic()
        for rank in self.ranks:
            if rank.returncode is not None:
                if not rank.ended:
                    self._settle(rank)
            elif not rank.reported and rank.plan.error_file.exists():
                rank.error_since = rank.error_since or now
                if now - rank.error_since > self._hang_seconds:
                    self._report(rank, (read_error_file(rank.plan.error_file) or {}).get("code") or 1)
        self._children.reap_adopted()
