"""`Comparison`: what a comparison found, to print, to show in a notebook, to keep and to plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from hdp.contract.errors import HdpError, SpecError
from hdp.estimator.comparison import figures as rules
from hdp.estimator.comparison.figures import Figures, Losses, Verdict
from hdp.estimator.comparison.model import Run, Setting, Variant
from hdp.estimator.spelling import did_you_mean


@dataclass(frozen=True)
class Comparison:
    """The jobs of a comparison, and what they say about each other. ``print`` shows it; so does a notebook.

    All figures are computed from `runs`, which have the time of every step. See `hdp.estimator.comparison.figures` for
    when a difference is named.
    """

    setting: Setting
    variants: tuple[Variant, ...]
    runs: tuple[Run, ...]
    repeats: int
    warmup: int | None = None
    """Steps at the begin of each job that don't count; None: a fifth of them, at most 10."""
    price_per_hour: float | None = None
    """Of one host."""
    loss_tolerance: float = 0.01
    """How far final losses may be apart, relative to the largest, and still agree."""

    @cached_property
    def figures(self) -> Mapping[str, Figures]:
        """What is known of each variant, by label, in the order in which they were given; baselines come last."""
        alone = {v.label: rules.figures_of(v.label, self.runs_of(v.label), self.warmup) for v in self.variants}
        return {v.label: self._related(v, alone) for v in self.variants}

    def runs_of(self, label: str) -> Sequence[Run]:
        """The jobs of one variant, in the order of the repeats. Raises KeyError with the labels that there are."""
        self.variant(label)
        return [run for run in self.runs if run.label == label]

    def variant(self, label: str) -> Variant:
        """The variant called `label`. Raises KeyError with the labels that there are."""
        labels = [v.label for v in self.variants]
        if label not in labels:
            raise KeyError(f"no variant is called {label!r}{did_you_mean(label, labels)} (there are: {labels})")
        return self.variants[labels.index(label)]

    def verdict(self, a: str, b: str) -> Verdict:
        """Whether a step of `b` takes another time than one of `a`; a difference inside the spread is none."""
        self.variant(a), self.variant(b)
        return rules.verdict(self.figures[a], self.figures[b])

    @property
    def losses(self) -> Losses | None:
        """Whether final losses agree, of all variants that aren't baselines; None where fewer than two said one."""
        ours = [self.figures[v.label] for v in self.variants if v.kind == "variant"]
        return rules.losses(ours, self.loss_tolerance)

    def _related(self, variant: Variant, alone: Mapping[str, Figures]) -> Figures:
        own = alone[variant.label]
        one = next((v for v in self.variants if v.kind == "one process"), None)
        efficiency = rules.efficiency(own, variant, alone[one.label]) if one else None
        exposed = None
        if variant.apart is not None and variant.apart in alone:
            ranks = self.variant(variant.apart).ranks
            exposed = rules.exposed(own, variant.ranks, alone[variant.apart], ranks)
        return replace(own, scaling_efficiency=efficiency, exposed=exposed, cost=self._cost(variant))

    def _cost(self, variant: Variant) -> float | None:
        took = [r.training_seconds for r in self.runs_of(variant.label) if r.training_seconds and not r.failure]
        if self.price_per_hour is None or not took:
            return None
        return self.price_per_hour * (variant.hosts + variant.others) * sum(took) / len(took) / 3600

    # ---- to look at --------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        from hdp.estimator.comparison.table import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(v.label for v in self.variants)}: {len(self.runs)} jobs; print() shows it>"

    def _repr_html_(self) -> str:
        from hdp.estimator.comparison.table import as_html

        return as_html(self)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with one row a variant, times in seconds. Raises HdpError: there is no pandas."""
        try:
            import pandas
        except ImportError as exc:
            raise HdpError(
                "to_dataframe() makes a pandas DataFrame, and pandas isn't installed: pip install "
                "'hdp-train[notebook]'; rows() gives the same without it"
            ) from exc
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One flat dictionary a variant: all figures, and the difference to the first variant."""
        return [_row(variant, self.figures[variant.label], self._to_first(variant)) for variant in self.variants]

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """A matplotlib Figure: the time of each step, and each variant's median with its quartiles.

        path: where to write it too; its suffix says as what (.png, .svg, .pdf). Raises HdpError: no matplotlib, or the
        file can't be written.
        """
        from hdp.estimator.comparison.plot import plot

        return plot(self, None if path is None else Path(path))

    def _to_first(self, variant: Variant) -> Verdict | None:
        """Baselines do other work, so they aren't compared."""
        first = self.variants[0]
        return self.verdict(first.label, variant.label) if variant.kind == "variant" and variant != first else None

    # ---- to keep -----------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Everything, as JSON; figures too, for whoever reads it without hdp."""
        from hdp.estimator.comparison.keeping import to_json

        return to_json(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write `to_json` to a file. Raises HdpError: it can't be written."""
        try:
            Path(path).write_text(self.to_json() + "\n", encoding="utf-8")
        except OSError as exc:
            raise HdpError(f"{path} can't be written: {exc.strerror}") from exc

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """What `to_json` gave. Raises SpecError: it didn't give `text`."""
        from hdp.estimator.comparison.keeping import from_json

        return from_json(text)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Comparison:
        """What `save` wrote. Raises SpecError: it can't be read, or isn't that."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise SpecError([f"{path} can't be read: {exc}"], "Comparison.load") from exc


def _row(variant: Variant, figures: Figures, to_first: Verdict | None) -> dict[str, Any]:
    step, exposed = figures.step, figures.exposed
    return {
        "label": variant.label,
        "kind": variant.kind,
        "hosts": variant.hosts,
        "ranks": variant.ranks,
        "other_hosts": variant.others,
        "step_seconds": step and step.median,
        "step_seconds_q1": step and step.first,
        "step_seconds_q3": step and step.third,
        "steps": figures.steps,
        "repeat_medians": list(figures.repeat_medians),
        "samples_per_second": figures.samples_per_second,
        "exposed_seconds": exposed and exposed.seconds,
        "exposed_estimate": exposed and exposed.estimate,
        "sent_bytes": figures.sent_bytes,
        "sent_bytes_per_step": figures.sent_bytes_per_step,
        "scaling_efficiency": figures.scaling_efficiency,
        "final_loss": sum(figures.losses) / len(figures.losses) if figures.losses else None,
        "cost": figures.cost,
        "failed": len(figures.failures),
        "ratio_to_first": to_first and to_first.ratio,
        "ratio_low": to_first and to_first.low,
        "ratio_high": to_first and to_first.high,
        "differs_from_first": to_first and to_first.apart,
    }
