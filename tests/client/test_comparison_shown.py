"""What a comparison shows: the table, HTML, JSON, a DataFrame, the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.errors import HdpError, SpecError
from hdp.estimator import Comparison
from hdp.estimator.comparison.model import Run, Setting, Variant
from hdp.estimator.comparison.steps import Steps

HDP = {"hdp": {"enabled": True, "processes_per_host": 2}}

TABLE = """\
train.py on local, 2 x 2 ranks, network 1gbit, 2 repeats, 2026-12-01 00:00 UTC
A processor, 8 cores, 16 GiB memory, Linux 6
python 3.11.7, hdp-train 0.1.0

            step quartiles samples exposed  a host scal- final cost        to
              ms        ms      /s      ms   sends   ing  loss            hdp
hdp         10.0 10.0-10.0   6,400    4.00 500 KiB   64%   0.5 0.02         -
gloo        30.0 30.0-30.0   2,133    24.0 500 KiB   21%   0.5 0.02    3.00 x
same        10.0 10.0-10.0   6,400    4.00 500 KiB   64%   0.5 0.02 in spread
one process 6.40 6.40-6.40   2,500       - 500 KiB  100%   0.5 0.01         -
apart       6.00 6.00-6.00  10,667       - 500 KiB  107%   0.5 0.02         -

step: median of all jobs' steps, and their quartiles; left out as warm-up: 2 of each job
a host sends: in a step, the host that sends most; start and end of the job are in it
exposed: the step less that of as many processes that don't communicate, under the same load
scaling: samples a second of R ranks, of R times those of one process with the machine for itself
final losses agree within 0.01 of each other: 0.5 to 0.5
cost: of one job, at 1 a host and hour
gloo: 3.00 times hdp's step time (95% interval 3.00 to 3.00)
same and hdp: within the spread, no difference is named: the quartiles of their steps overlap"""


def comparison(**more: Any) -> Comparison:
    """Five variants, two jobs of each; every step of a job takes the same time."""
    shown = [
        ("hdp", 10.0, 64.0),
        ("gloo", 30.0, 64.0),
        ("same", 10.0, 64.0),
        ("one process", 6.4, 16.0),
        ("apart", 6.0, 64.0),
    ]
    runs = [
        Run(
            label,
            repeat,
            f"{label}-{repeat}",
            Steps(tuple(range(10)), (ms / 1e3,) * 10, samples, 0.5, 10),
            5120000,
            36.0,
        )
        for repeat in (1, 2)
        for label, ms, samples in shown
    ]
    variants = [Variant(label, distribution=HDP, hosts=2, ranks=4, apart="apart") for label, _, _ in shown[:3]]
    variants += [Variant("one process", "one process"), Variant("apart", "apart", hosts=2, ranks=4)]
    machine = {"cpu": "A processor", "cores": 8, "memory_bytes": 16 << 30, "kernel": "Linux 6"}
    versions = {"python": "3.11.7", "hdp-train": "0.1.0"}
    setting = Setting("2026-12-01 00:00 UTC", "train.py", "local", "local", "1gbit", machine, versions)
    return Comparison(setting, tuple(variants), tuple(runs), 2, **{"warmup": 2, "price_per_hour": 1.0, **more})


def test_the_table_says_what_it_means() -> None:
    """Its columns fit in 80."""
    assert str(comparison()) == TABLE


def test_estimates_and_what_baselines_lack_are_marked() -> None:
    """Apart, a process took 64 samples a step, and 16 in the variant, which has an environment of its own."""
    whole = comparison()
    runs = [Run(r.label, r.repeat, r.job, Steps(r.steps.numbers, r.steps.seconds, 256.0)) for r in whole.runs]
    runs = [new if new.label == "apart" else old for new, old in zip(runs, whole.runs, strict=True)]
    own = [Variant(**{**vars(v), "changes": {"environment": {"A": "1"}}}) for v in whole.variants[:1]]
    text = str(Comparison(whole.setting, (*own, *whole.variants[1:]), tuple(runs), 2))
    assert "~8.50" in text  # 10 ms less a quarter of 6 ms
    assert "~ of hdp: an estimate: rather too much: 16 samples a process and step, apart 64" in text
    assert "hdp has its own environment {'A': '1'}" in text


def test_shapes_that_differ_have_a_column() -> None:
    whole = comparison()
    wide = Variant("same", distribution=HDP, hosts=4, ranks=6, apart="apart")
    text = str(Comparison(whole.setting, (*whole.variants[:2], wide), whole.runs, 2))
    assert "train.py on local, 2 x 2 ranks and 6 ranks on 4 hosts, network" in text
    assert "hosts x" in text


def test_nobody_reads_a_column_that_nobody_fills() -> None:
    whole = comparison(price_per_hour=None)
    assert "cost" not in str(whole)
    assert "a host" not in str(without_bytes(whole)) and "a host" in str(whole)


def without_bytes(whole: Comparison) -> Comparison:
    runs = tuple(Run(r.label, r.repeat, r.job, r.steps) for r in whole.runs)
    return Comparison(whole.setting, whole.variants, runs, whole.repeats)


def test_a_notebook_shows_the_table_escaped() -> None:
    whole = comparison()
    odd = Variant("<b>", distribution=HDP, hosts=2, ranks=4)
    html = Comparison(whole.setting, (odd, *whole.variants), whole.runs, 2)._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert html.count("<tr>") == 7 and html.count("<td>10.0</td>") == 2


def test_a_comparison_is_the_same_after_json_and_file(tmp_path: Path) -> None:
    whole = comparison()
    assert Comparison.from_json(whole.to_json()) == whole
    whole.save(tmp_path / "out.json")
    again = Comparison.load(tmp_path / "out.json")
    assert again == whole and str(again) == str(whole)
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["figures"][1]["ratio_to_first"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"), ("[]", "AttributeError"), ("{}", "it has format None, version None"),
        ('{"format": "hdp comparison", "version": 2}', "version 2"),
        ('{"format": "hdp comparison", "version": 1}', "KeyError: 'setting'"),
    ],
)  # fmt: skip
def test_other_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=r"this isn't what Comparison\.to_json") as caught:
        Comparison.from_json(text)
    assert message in str(caught.value)


def test_files_that_cannot_be_written_or_read_are_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "x.json"
    with pytest.raises(HdpError, match=r"x\.json can't be written: No such file"):
        comparison().save(nowhere)
    with pytest.raises(SpecError, match=r"x\.json can't be read"):
        Comparison.load(nowhere)
    with pytest.raises(HdpError, match=r"the plot can't be written to .*x\.jason"):
        comparison().plot(tmp_path / "x.jason")


def test_a_data_frame_has_a_row_a_variant() -> None:
    frame = comparison().to_dataframe()
    assert frame.label.tolist() == ["hdp", "gloo", "same", "one process", "apart"]
    assert frame.step_seconds.tolist() == pytest.approx([0.01, 0.03, 0.01, 0.0064, 0.006])
    assert frame.differs_from_first.tolist() == [None, True, False, None, None]


def test_unknown_labels_are_named() -> None:
    with pytest.raises(KeyError, match="no variant is called 'glo'; did you mean 'gloo'"):
        comparison().verdict("hdp", "glo")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_plot_has_a_line_a_job_and_a_bar_a_variant(tmp_path: Path, suffix: str) -> None:
    figure = comparison().plot(tmp_path / f"out{suffix}")
    lines, bars = figure.axes
    assert len(lines.get_lines()) == 2 * 10  # its warm-up is a line of its own
    assert [text.get_text() for text in lines.get_legend().get_texts()] == [v.label for v in comparison().variants]
    assert [round(bar.get_width(), 1) for bar in bars.patches] == [10, 30, 10, 6.4, 6]
    assert (tmp_path / f"out{suffix}").stat().st_size > 10_000


def test_the_plot_shows_itself_in_a_notebook() -> None:
    assert comparison().plot()._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib_and_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("pandas", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    for call in (comparison().plot, comparison().to_dataframe):
        with pytest.raises(HdpError, match=r"pip install 'hdp-train\[notebook\]'"):
            call()
