"""One host's part of a job.

There is one loop (`Reactor`), in the main thread, and the phases follow each other: meet the other hosts; provide
channels and code; wait for the others to be ready; start the reduction server and the ranks; supervise; end. In each
phase the host may be interrupted: told to stop, by an alarm (something failed somewhere), or by the cause. However it
ends, the report is written, and nothing that it started is left.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable

from hdp.contract.errors import ChannelError, HdpError, LaunchError
from hdp.contract.outcome import Failure, HostReport, RankOutcome, first_cause
from hdp.contract.redact import redact_text
from hdp.runtime.environment import Resources, TrainingEnvironment, load
from hdp.runtime.launch import heartbeat, linux
from hdp.runtime.launch.checkpoints import CheckpointWatch
from hdp.runtime.launch.coordination import failure_message
from hdp.runtime.launch.failure import host_failure, with_troubles
from hdp.runtime.launch.launcher import Launcher
from hdp.runtime.launch.leaving import leave, leave_mark, make_run_folder
from hdp.runtime.launch.logs import LogWriter
from hdp.runtime.launch.meeting import Meeting
from hdp.runtime.launch.news import News
from hdp.runtime.launch.prepare import Preparation, Prepared, make_folders
from hdp.runtime.launch.ranks import RankFiles
from hdp.runtime.launch.reactor import Reactor
from hdp.runtime.launch.stopping import stop_ranks
from hdp.runtime.launch.supervisor import Supervisor
from hdp.runtime.launch.timing import Timing
from hdp.runtime.launch.wire import Message
from hdp.runtime.settings import Settings

log = logging.getLogger(__name__)

#: Exit code of a host that was stopped before its ranks were through: 128 + SIGTERM, as shells say it.
STOPPED_EXIT_CODE = 143
#: What tells a host to stop. Blocked until `Host.run` handles them.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Interrupted(Exception):
    """The phase can't go on: stop, alarm or cause."""


class Host:
    """This host's part of the job, from start to end."""

    def __init__(
        self, settings: Settings, resources: Resources, writer: LogWriter, *, server_module: str, timing: Timing
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._writer = writer
        self._timing = timing
        self._layout = settings.layout
        self._host = resources.current_host
        self._reactor = Reactor()
        self._children = linux.Children()
        self._supervisor = Supervisor(
            self._reactor, self._children, writer, self._host, on_failure=self._on_failure, hang_seconds=timing.hang
        )
        self._news = News()
        self._launcher = Launcher(
            settings,
            self._reactor,
            self._children,
            self._supervisor,
            RankFiles(make_run_folder(settings.run_dir), settings.secret_file),
            send=self._send,
            fail=self._fail,
            interrupted=lambda: self._news.interrupted,
            server_module=server_module,
        )
        self._meeting: Meeting | None = None
        self._preparation: Preparation | None = None
        self._watch: CheckpointWatch | None = None
        self._channel_lost = False

    # -- the phases ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Do the host's part of the job. Returns the exit code."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self._reactor.post(self._on_stop))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            heartbeat.beat()
            self._reactor.every(heartbeat.SECONDS, heartbeat.beat)
            self._train()
        except _Interrupted:
            pass
        except HdpError as exc:
            self._fail(exc)
        except Exception as exc:
            log.exception("the agent itself failed")
            self._fail(exc, traceback.format_exc())
        try:
            self._end_ranks()
            self._agree_on_end()
        except Exception as exc:
            log.exception("the agent itself failed while it ended the host")
            self._news.cause = self._news.cause or host_failure(self._host, exc, time.time(), traceback.format_exc())
        finally:
            self._clean_up()
        return self._leave_report()

    def _train(self) -> None:
        training, error = self._load()
        self._meeting = Meeting(self._settings, self._resources, self._timing, self._deliver)
        self._reactor.every(0.5, self._meeting.tick)
        self._meeting.send({"type": "hello", "host": self._host, "local_size": training.local_size if training else 0})
        if training is None:
            raise error or LaunchError("the host's environment could not be read")
        logging.getLogger("hdp").setLevel(training.log_level)
        self._wait(lambda: self._news.world is not None)
        assert self._news.world is not None
        prepared = self._prepare(training)
        self._launcher.prepare(training, self._news.world, prepared)
        self._check()
        self._meeting.send({"type": "ready"})
        self._wait(lambda: self._news.go)
        leave_mark(self._layout)
        self._launcher.start(training, self._news.world, prepared)
        self._wait(lambda: self._launcher.ended)

    def _load(self) -> tuple[TrainingEnvironment | None, HdpError | None]:
        """The environment, or why it can't be read; the others have to be told, so it isn't raised yet."""
        try:
            make_folders(self._layout)
            return load(self._layout, os.environ), None
        except HdpError as exc:
            return None, exc

    def _prepare(self, training: TrainingEnvironment) -> Prepared:
        preparation = Preparation(training, self._children, lambda: self._reactor.post(lambda: None))
        self._preparation = preparation
        self._reactor.every(0.25, self._check_channels)
        self._wait(lambda: preparation.done)
        return preparation.result()

    # -- the end ------------------------------------------------------------------------------------------------

    def _end_ranks(self) -> None:
        """See to it that no rank is left: wait, ask, kill, as the reason requires."""
        self._launcher.refuse()
        if self._preparation is not None:
            self._preparation.abandon()
        if self._news.stop is None and not self._supervisor.ended:
            since = self._news.alarm or time.monotonic()
            self._reactor.run_until(
                lambda: self._supervisor.ended or self._news.stop is not None or self._had_grace(since)
            )
        if not self._supervisor.ended:
            self._watch = stop_ranks(self._reactor, self._supervisor, self._layout.checkpoints, self._deadline())

    def _had_grace(self, since: float) -> bool:
        """Whether the ranks had their time to end by themselves, since the alarm at `since`.

        While only collateral failures are known, one of the ranks that still run may be the culprit, about to end.
        """
        known = self._news.culprit_known is not None or self._launcher.gave_up
        more = 0.0 if known else self._timing.culprit
        return time.monotonic() >= since + self._timing.grace + more

    def _deadline(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return self._settings.stop_timeout.total_seconds() if self._news.stopped_first else self._timing.kill

    def _agree_on_end(self) -> None:
        """Tell that this host is done, and learn how the job ended."""
        if self._meeting is None:
            self._news.cause = self._news.cause or first_cause(self._news.failures)
            return
        ok = self._succeeded() and not self._news.failures
        self._meeting.send({"type": "done", "ok": ok, "exit_codes": self._supervisor.exit_codes()})
        if not self._news.failures:
            # All well here: as long as the others need.
            self._reactor.run_until(lambda: self._news.all_done or self._news.interrupted)
        # What fails after a stop isn't why the job ended; then there is no alarm either.
        if self._news.alarm is not None or (self._news.failures and self._news.stop is None):
            # The others' ranks may need all their time to end, and the cause may come only then.
            self._reactor.run_until(lambda: self._news.cause is not None, self._timing.longest)
            self._news.cause = self._news.cause or first_cause(self._news.failures)
        if self._meeting.coordinates:
            # Each host may take its whole deadline to end its ranks.
            self._reactor.run_until(lambda: self._news.all_done, self._deadline() + self._timing.longest)

    def _clean_up(self) -> None:
        self._launcher.close()
        self._supervisor.close()
        if self._preparation is not None:
            self._preparation.stop_channels()
        left = self._children.kill_all()
        if left:
            log.info("killed %d processes that were left", len(left))
        if self._preparation is not None:
            self._preparation.join(2.0)
            self._preparation.stop_channels()
        if self._meeting is not None:
            self._meeting.close()

    def _leave_report(self) -> int:
        outcomes, checkpoints = self._outcomes()
        lost = self._writer.lost_lines
        report = HostReport(
            host=self._host,
            ranks=outcomes,
            failures=tuple(self._news.failures),
            first_cause=self._news.cause,
            stopped=self._news.stop is not None,
            checkpoints=checkpoints,
            notes=(*((f"{lost} log lines could not be written",) if lost else ()), *self._troubles()),
            channels=tuple(self._preparation.channel_statistics()) if self._preparation is not None else (),
        )
        shutil.rmtree(self._launcher.files.folder, ignore_errors=True)
        leave(self._layout, report)
        if self._news.cause is not None:
            log.error("the job failed: %s", self._news.cause.summary())
            return 1
        return 0 if self._succeeded() else STOPPED_EXIT_CODE

    def _outcomes(self) -> tuple[tuple[RankOutcome, ...], tuple[str, ...]]:
        by_rank = self._watch.by_rank(self._supervisor.side_files()) if self._watch is not None else {}
        written = self._watch.written() if self._watch is not None else ()
        return tuple(r.outcome(by_rank.get(r.rank, ())) for r in self._supervisor.ranks), written

    def _succeeded(self) -> bool:
        return self._launcher.succeeded

    # -- what happens meanwhile ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._news.interrupted:
            raise _Interrupted

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until `done()`. Raises _Interrupted for a stop, an alarm or a cause."""
        self._reactor.run_until(lambda: done() or self._news.interrupted)
        self._check()

    def _deliver(self, message: Message) -> None:
        """From another thread: handle `message` in the loop."""
        self._reactor.post(lambda: self._on_message(message))

    def _on_message(self, message: Message) -> None:
        if message["type"] == "stop":
            self._on_stop()
        elif not self._launcher.hear(message):
            self._news.hear(message)

    def _send(self, message: Message) -> None:
        if self._meeting is not None:
            self._meeting.send(message)

    def _on_stop(self) -> None:
        if self._news.stop is None:
            log.info("told to stop")
            self._news.stop = time.monotonic()
            self._send({"type": "stop"})

    def _troubles(self) -> list[str]:
        found = self._preparation.channel_troubles() if self._preparation is not None else []
        return [redact_text(trouble) for trouble in found]

    def _check_channels(self) -> None:
        """Fail if a channel can't be read any more, as of when it was last known to be well: ranks fail of it too."""
        lost = self._preparation.channel_failure() if self._preparation is not None else None
        if lost is not None and not self._channel_lost:
            self._channel_lost = True
            log.error("%s", lost[0])
            self._on_failure(host_failure(self._host, ChannelError(lost[0]), lost[1]))

    def _on_failure(self, failure: Failure) -> None:
        # A rank that fails because its channel is gone may say so before the loop has looked.
        self._check_channels()
        failure = with_troubles(failure, self._troubles())
        self._news.failures.append(failure)
        self._send(failure_message(failure))

    def _fail(self, error: BaseException, text: str = "") -> None:
        """Something went wrong on this host, but not in a rank."""
        failure = host_failure(self._host, error, time.time(), text)
        log.error("%s", failure.exception)
        self._on_failure(failure)
