"""Follows one job: shows its log from where it was, and what happens to it, until it has ended."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import JobNotFound
from hdp.estimator import cursors
from hdp.estimator import logs as log_view
from hdp.estimator.bar import Bar, bar_for
from hdp.estimator.engines.base import TERMINAL, LogLine, Remote
from hdp.estimator.progress import Progress

if TYPE_CHECKING:
    from hdp.estimator.job import TrainingJob

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 1.0
#: A service elsewhere counts the calls of all of an account's clients together.
_FIRST_REMOTE_PAUSE_SECONDS = 1.0
#: Between two looks at a log that may still get lines after its job's end.
_LATE_PAUSE_SECONDS = 0.5
#: A follower that is killed shows at most so much again.
_SAVE_SECONDS = 5.0


def nowhere(text: str) -> None:
    """Sink for what nobody wants to see."""


@dataclass
class Follower:
    """Reads one job's log on from where it was, and notes what happens to the job."""

    job: TrainingJob
    sink: log_view.Sink
    wanted: log_view.Filter = field(default_factory=log_view.Filter)
    transitions: bool = True
    resume: bool = False
    """Whether to go on where a follower of this job was left, in whatever process."""
    with_bar: bool = False
    """Whether progress is a bar, where the output can have one."""
    _bar: Bar | None = None
    _cursor: Mapping[str, Any] = field(default_factory=dict)
    _transitions_seen: int = 0
    _waiting: list[Mapping[str, Any]] = field(default_factory=list)
    _progress: Progress = field(default_factory=Progress)
    _saved_at: float = -math.inf

    def __post_init__(self) -> None:
        if self.resume and self._keeps:
            kept = cursors.load(*self._place)
            self._cursor, self._transitions_seen = kept.get("cursor", {}), kept.get("transitions", 0)

    def to_the_end(self) -> dict[str, Any]:
        """Show everything until the job has ended. Returns its last description."""
        try:
            with self._shown_bar():
                return self._to_the_end()
        finally:
            self._save(0.0)

    @contextmanager
    def _shown_bar(self) -> Iterator[None]:
        """Where there is a bar, it takes progress, and what goes to the sink otherwise."""
        self._bar = bar_for(self.job.name) if self.with_bar else None
        if self._bar is None:
            yield
            return
        self._progress.bar, self.sink = self._bar, self._bar.line
        try:
            yield
        finally:
            self._bar.close()

    def drain(self) -> None:
        """Show what there is, page by page."""
        try:
            while self._show_page():
                pass
            self._show(self._progress.flush())
        finally:
            self._save(0.0)

    def _to_the_end(self) -> dict[str, Any]:
        first, longest = self._pauses()
        pause, seen, ran = first, False, False
        while True:
            try:
                answer = self.job.describe()
                seen = True
                news = self._show_news(answer)
            except JobNotFound as exc:
                raise self._removed() if seen else exc from exc
            if answer["TrainingJobStatus"] in TERMINAL:
                self._show_late_lines(answer, just_now=ran)
                return answer
            ran = True
            self._show(self._progress.due(time.time()))
            pause = first if news else min(pause * 1.5, longest)
            time.sleep(pause)

    def _pauses(self) -> tuple[float, float]:
        """Seconds between two looks where there is news, and where there hasn't been any for a while."""
        engine = self.job.engine
        if not isinstance(engine, Remote):
            return _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS
        longest = engine.pace().poll_seconds
        return min(_FIRST_REMOTE_PAUSE_SECONDS, longest), longest

    def _show_late_lines(self, answer: Mapping[str, Any], *, just_now: bool) -> None:
        """Go on a little where lines of the log come later than the news of the job's end.

        just_now: it ran when it was looked at before. Else the service says when it was, by its own clock.
        """
        engine, end = self.job.engine, answer.get("TrainingEndTime")
        if not isinstance(engine, Remote) or end is None or self.sink is nowhere:
            return
        lag = engine.pace().log_lag_seconds
        left = lag if just_now else min(end.timestamp() + lag - time.time(), lag)
        deadline = time.monotonic() + left
        while time.monotonic() < deadline:
            time.sleep(_LATE_PAUSE_SECONDS)
            self._show_news(answer)

    def _removed(self) -> JobNotFound:
        name = self.job.name
        return JobNotFound(
            f"job {name} was removed while it was followed (hdp clean {name} --all?); its log is gone too"
        )

    def _show_news(self, answer: Mapping[str, Any]) -> int:
        """Show what is new in the log and what happened to the job, by time. Returns how many lines that were.

        What happened is known before the log is read. So every line from before it is in the pages that follow, and
        it is shown where a line is later, or where there are no more lines. Whoever sees the end sees a whole log.
        """
        self._note_transitions(answer)
        ended, shown = answer["TrainingJobStatus"] in TERMINAL, len(self._waiting)
        while lines := self._show_page():
            shown += lines
            if not (self._waiting or ended):
                return shown
        self._show_transitions()
        self._flush()
        return shown

    def _show_page(self) -> int:
        """Show one page. Returns how many lines it had, wanted or not."""
        if self.sink is nowhere:
            return 0
        page = self.job.engine.logs(self.job.name, self._cursor)
        self._cursor = page.cursor
        for line in page.lines:
            self._show_transitions(until=line.time)
            if self.wanted(line):
                self._show(self._progress.lines_for(line))
        if page.lines:
            self._flush()
            self._save(_SAVE_SECONDS)
        return len(page.lines)

    def _show(self, lines: Iterable[LogLine]) -> None:
        log_view.show(lines, self.sink, colour=log_view.has_colour(sys.stdout))

    def _flush(self) -> None:
        if self._bar is not None:
            self._bar.flush()

    def _note_transitions(self, answer: Mapping[str, Any]) -> None:
        steps = answer.get("SecondaryStatusTransitions", []) if self.transitions else []
        self._waiting += steps[self._transitions_seen :]
        self._transitions_seen = max(len(steps), self._transitions_seen)

    def _show_transitions(self, until: float = math.inf) -> None:
        """Show those that wait and happened before `until`, Unix seconds."""
        while self._waiting and self._waiting[0]["StartTime"].timestamp() <= until:
            self._show(self._progress.flush())
            step = self._waiting.pop(0)
            if self._bar is not None:
                self._bar.status(step["Status"])
            at = step["StartTime"].astimezone().strftime("%H:%M:%S")
            # A failure's traceback comes with the exception; here its first line is enough.
            said = str(step.get("StatusMessage", "")).splitlines()
            self.sink(f"{at} {step['Status']}" + (f" - {said[0]}" if said else ""))

    @property
    def _keeps(self) -> bool:
        return isinstance(self.job.engine, Remote)

    @property
    def _place(self) -> tuple[str, str, str]:
        engine = self.job.engine
        return engine.name, engine.capabilities().region or "", self.job.name

    def _save(self, interval: float) -> None:
        """Keep the place, unless that was done less than `interval` seconds ago."""
        if not self._keeps or not self._cursor or time.monotonic() - self._saved_at < interval:
            return
        seen = self._transitions_seen - len(self._waiting)
        cursors.save(*self._place, {"cursor": dict(self._cursor), "transitions": seen})
        self._saved_at = time.monotonic()
