"""compare() and what it gives, over an engine whose jobs say what their environment tells them to."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hdp.contract.errors import ComparisonFailed, HdpError, SpecError
from hdp.contract.metrics import Record, encode
from hdp.estimator import FLAG, Comparison, Estimator, InstanceGroup, compare
from hdp.estimator.cli.app import app
from hdp.estimator.cli.compare import _check_writable
from hdp.estimator.comparison import ComparisonInterrupted
from hdp.estimator.engines.base import JobRequest, LogLine, LogPage

from .conftest import MemoryEngine

HDP = {"hdp": {"enabled": True, "processes_per_host": 2}}
HDP_HERE = {"distribution": HDP}


class Speaking(MemoryEngine):
    """A job takes STEPS (20) steps of MS (10) milliseconds, loses LOSS (0.5), and fails where FAIL is set."""

    def told(self, name: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.requests[name].training_job.get("Environment", {})
        return found

    def describe(self, name: str) -> dict[str, Any]:
        answer = super().describe(name)
        if "CTRL_C" in self.told(name):
            raise KeyboardInterrupt
        if "FAIL" in self.told(name):
            answer |= {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": "rank 1: boom"}
        start = datetime(2026, 1, 1, tzinfo=timezone.utc)
        sent = {host: {"sent_bytes": size} for host, size in (("algo-1", 2000), ("algo-2", 4000))}
        times = {"TrainingStartTime": start, "TrainingEndTime": start + timedelta(seconds=36)}
        return {**answer, **times, "Hdp": {"network": {"hosts": sent}, "log_dir": "/logs"}}

    def logs(self, name: str, cursor: Mapping[str, int]) -> LogPage:
        told = self.told(name)
        seconds, loss = float(told.get("MS", "10")) / 1e3, float(told.get("LOSS", "0.5"))
        values = {"loss": loss, "samples": 64.0}
        lines = [
            LogLine(i * seconds, "algo-1", 0, encode(Record(i * seconds, i * seconds, values, i)))
            for i in range(int(told.get("STEPS", "20")))
        ]
        return LogPage([] if cursor else lines, {"n": 1})


@pytest.fixture
def engine() -> Speaking:
    return Speaking()


@pytest.fixture
def estimator(project: Path, engine: Speaking) -> Estimator:
    return Estimator(entry_point="train.py", engine=engine, instance_count=2, environment={"A": "1"})


def started(engine: Speaking) -> list[str]:
    """Labels of the jobs, in the order in which they started."""
    return [name.removeprefix("train-").split("-20")[0] for verb, name in engine.calls if verb == "submit"]


# ---- which jobs run, and in which order ------------------------------------------------------------------------------


def test_each_repeat_begins_one_further_on(estimator: Estimator, engine: Speaking) -> None:
    compare(estimator, {"a": {}, "b": {}, "c": {}}, repeats=4, baselines=False)
    assert started(engine) == [*"abc", *"bca", *"cab", *"abc"]


def test_baselines_run_among_the_others(estimator: Estimator, engine: Speaking) -> None:
    """One process on one host, and 2 x 2 processes apart; their labels come last in the table."""
    found = compare(estimator, {"hdp": HDP}, repeats=2)
    assert started(engine) == ["hdp", "one-process", "apart", "one-process", "apart", "hdp"]
    rows = [(v.label, v.kind, v.hosts, v.ranks, v.apart) for v in found.variants]
    assert rows == [
        ("hdp", "variant", 2, 4, "apart"),
        ("one process", "one process", 1, 1, None),
        ("apart", "apart", 2, 4, None),
    ]


def test_each_shape_has_its_own_processes_apart(estimator: Estimator, engine: Speaking) -> None:
    """2 x 2 twice, 2 x 1, and 1 x 1, which needs none."""
    one = {"distribution": {}, "instance_count": 1}
    found = compare(estimator, {"a": HDP, "b": HDP, "c": {}, "d": one}, repeats=1)
    assert [v.apart for v in found.variants if v.kind == "variant"] == [
        "apart 2 x 2",
        "apart 2 x 2",
        "apart 2 x 1",
        None,
    ]
    assert [v.label for v in found.variants[4:]] == ["one process", "apart 2 x 2", "apart 2 x 1"]


def test_one_baseline_serves_variants_that_differ_in_their_interpreter(estimator: Estimator, engine: Speaking) -> None:
    """Not those that differ in other options of the engine, such as the network. Expected: two, each with its own."""
    options = [{}, {"python": "/a/python"}, {"speed": 2}]
    variants = {label: {**HDP_HERE, "engine_options": own} for label, own in zip("abc", options, strict=True)}
    engine.validate_options = lambda options: (options, [])  # type: ignore[method-assign]  # the names don't matter
    found = compare(estimator, variants, repeats=1)
    assert [v.apart for v in found.variants[:3]] == ["apart 2 x 2", "apart 2 x 2", "apart 2 x 2 #2"]
    assert [request.engine_options for request in engine.requests.values()][-2:] == [{}, {"speed": 2}]


def test_baselines_may_have_hyperparameters_of_their_own(project: Path, engine: Speaking) -> None:
    """Apart, a process takes a rank's part of the batch. Expected: there alone; it is said below the table."""
    estimator = Estimator(entry_point="train.py", engine=engine, hyperparameters={"batch": 64, "lr": 1})
    own = {"apart": {"hyperparameters": {"batch": 16}, "environment": {"MS": "5"}}}
    found = compare(estimator, {"hdp": HDP}, repeats=1, baselines=own)
    batches = [request.training_job["HyperParameters"]["batch"] for request in engine.requests.values()]
    assert batches == ["64", "64", "16"]
    assert found.figures["hdp"].exposed is not None
    assert "\napart has its own hyperparameters {'batch': 16}, environment {'MS': '5'}\n" in str(found)


@pytest.mark.parametrize(
    ("baselines", "fault"),
    [
        ("no", "baselines is 'no' (str); expected True, False, or {'apart': what it changes}"),
        ({"alone": {}}, "baselines['alone'] is unknown (known: one process, apart)"),
        ({"apart": True}, "baselines['apart'] is True (bool); expected a dictionary of hyperparameters,"),
        (
            {"apart": {"instance_count": 3}},
            "baselines['apart']: 'instance_count' can't differ (known: hyperparameters,",
        ),
        ({"apart": {"environment": {"A": 1}}}, "apart: environment['A'] is 1 (int); expected text (a baseline; "),
    ],
)
def test_baselines_that_are_none_are_refused(
    baselines: Any, fault: str, estimator: Estimator, engine: Speaking
) -> None:
    with pytest.raises(SpecError) as caught:
        compare(estimator, {"hdp": HDP}, baselines=baselines)
    assert caught.value.faults[0].startswith(fault)
    assert engine.calls == []


def test_a_variant_has_what_it_says_and_the_rest_of_the_estimator(estimator: Estimator, engine: Speaking) -> None:
    """environment and engine options are put on top, hosts and distribution are replaced; the estimator stays."""
    variant = {"distribution": {}, "instance_count": 1, "environment": {"B": "2"}, "engine_options": {"speed": 3}}
    found = compare(estimator, {"a": variant, "b": {"environment": {"A": "7"}}}, repeats=1, baselines=False)
    first, second = engine.requests.values()
    assert first.training_job["Environment"] == {"A": "1", "B": "2"}
    assert (first.training_job["ResourceConfig"]["InstanceCount"], first.engine_options) == (1, {"speed": 3})
    assert second.training_job["Environment"] == {"A": "7"}
    assert second.training_job["ResourceConfig"]["InstanceCount"] == 2
    assert estimator.settings.environment == {"A": "1"} and estimator.latest_training_job is None
    assert found.variant("b").changes == {"environment": {"A": "7"}}


def test_every_fault_of_every_variant_comes_at_once_with_its_label(estimator: Estimator, engine: Speaking) -> None:
    variants = {
        "a": {"hpd": {"enabled": True}},
        "b": {"distribution": {}, "hyperparametres": {}},
        "c": {"environment": {"X": 1}, "instance_count": 0},
        "d": {"engine_options": "fast"},
        "e": 7,
        "": {},
        "apart": {},
    }
    with pytest.raises(SpecError) as caught:
        compare(estimator, variants, "nowhere", repeats=0, warmup=-1, price_per_hour=-1.0)  # type: ignore[arg-type]
    faults = caught.value.faults
    assert faults[:3] == (
        "repeats is 0 (int); expected a whole number, 1 or more",
        "warmup is -1 (int); expected a whole number of steps, 0 or more",
        "price_per_hour is -1.0 (float); expected a number, 0 or more",
    )
    for expected in (
        "a: distribution.hpd is unknown; did you mean 'hdp'?",
        "'b': 'hyperparametres' can't differ between variants; did you mean 'hyperparameters'",
        "c: environment['X'] is 1 (int); expected text",
        "c: instance_count is 0; expected 1 or more",
        "'d': engine_options is 'fast' (str); expected a dictionary",
        "'e': it is 7 (int); expected a distribution",
        "'': a label is 1 to 30 printable characters",
        "'apart': a baseline has that name; take another label",
    ):
        assert any(fault.startswith(expected) for fault in faults), (expected, faults)
    assert engine.calls == []


@pytest.mark.parametrize("variants", [{}, None, ["hdp"]])
def test_variants_are_a_dictionary(variants: Any, estimator: Estimator) -> None:
    with pytest.raises(SpecError, match=r"variants is .*; expected \{label: distribution\}"):
        compare(estimator, variants)


def test_bad_inputs_are_named_before_any_job(estimator: Estimator, engine: Speaking) -> None:
    with pytest.raises(SpecError, match=r"a: .*ftp") as caught:
        compare(estimator, {"a": {}, "b": {}}, "ftp://x/")
    assert any(fault.startswith("b: ") for fault in caught.value.faults)
    assert engine.calls == []


def test_an_engine_of_a_later_version_is_named_with_the_label(project: Path, home: Path) -> None:
    groups = [InstanceGroup("g", "ml.p4d.24xlarge", 1)]
    variants = {"a": {}, "b": {"instance_groups": groups, "distribution": {}}}
    with pytest.raises(SpecError, match=r"  - b: .*sagemaker"):
        compare(Estimator(entry_point="train.py"), variants, baselines=False)
    assert not (home / "jobs").exists()


# ---- jobs that fail --------------------------------------------------------------------------------------------------


def test_a_failed_job_ends_the_comparison_with_its_label_and_what_was_run(
    estimator: Estimator, engine: Speaking
) -> None:
    with pytest.raises(ComparisonFailed) as caught:
        compare(estimator, {"good": {}, "bad": {"environment": {"FAIL": "1"}}, "c": {}}, baselines=False)
    assert str(caught.value).startswith("variant 'bad', repeat 1: job train-bad-")
    assert "failed: rank 1: boom" in str(caught.value) and "keep_going=True goes on" in str(caught.value)
    assert started(engine) == ["good", "bad"]
    found = caught.value.comparison
    assert isinstance(found, Comparison)
    assert [run.label for run in found.runs if run.failure is None] == ["good"]
    assert "bad: 1 of 1 jobs failed: job train-bad-" in str(found)


def test_keep_going_notes_the_failure_and_goes_on(
    estimator: Estimator, engine: Speaking, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = {"good": {}, "bad": {"environment": {"FAIL": "1"}}}
    found = compare(estimator, variants, repeats=2, baselines=False, keep_going=True)
    assert [(run.label, run.failure is None) for run in found.runs] == [
        ("good", True), ("bad", False), ("bad", False), ("good", True),
    ]  # fmt: skip
    assert "2 of 4: bad, repeat 1 of 2: FAILED: job train-bad-" in capsys.readouterr().out
    assert "bad: 2 of 2 jobs failed" in str(found)
    assert "no difference" not in str(found)
    assert str(found.verdict("good", "bad")) == "bad and good: one of them has no steps"
    assert found.to_dataframe().failed.tolist() == [0, 2]
    assert Comparison.from_json(found.to_json()) == found


def test_a_script_that_says_no_steps_is_told_how(estimator: Estimator) -> None:
    """The comparison so far has no figures, and says so."""
    message = r"variant 'a', .*said no time of a step: its script calls hdp\.metrics"
    with pytest.raises(ComparisonFailed, match=message) as caught:
        compare(estimator, {"a": {"environment": {"STEPS": "1"}}}, baselines=False)
    assert "\n\nno job has completed\na: 1 of 1 jobs failed: job train-a-" in str(caught.value.comparison)


def test_a_warmup_that_leaves_no_step_is_an_error(estimator: Estimator) -> None:
    with pytest.raises(ComparisonFailed, match=r"said the times of 19 steps, and warmup=19 leaves none of them"):
        compare(estimator, {"a": {}}, baselines=False, warmup=19)


def test_ctrl_c_stops_the_job_that_runs_and_keeps_the_others(estimator: Estimator, engine: Speaking) -> None:
    with pytest.raises(ComparisonInterrupted) as caught:
        compare(estimator, {"a": {}, "b": {"environment": {"CTRL_C": "1"}}, "c": {}}, baselines=False)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert [run.label for run in caught.value.comparison.runs] == ["a"]
    assert [verb for verb, _ in engine.calls if verb != "put_bundle"] == ["submit", "submit", "stop"]


def test_what_a_variant_changes_is_kept_as_json(estimator: Estimator, project: Path) -> None:
    """A path, a flag, a secret, hosts of two types. Expected: text, and the secret hidden; the same after JSON."""
    (project / "b.py").write_text("")
    variant = {"entry_point": Path("b.py"), "hyperparameters": {"fast": FLAG, "api_key": "abc"}}
    groups = {"instance_groups": [InstanceGroup("a", "local", 1), InstanceGroup("b", "local", 1)]}
    found = compare(estimator, {"a": variant, "b": groups}, repeats=1, baselines=False)
    assert found.variant("a").changes["entry_point"] == "b.py"
    assert found.variant("a").changes["hyperparameters"]["api_key"] == "***"
    assert (found.variant("b").hosts, found.variant("b").ranks) == (2, 2)
    assert Comparison.from_json(found.to_json()) == found


def test_instance_groups_and_a_number_of_hosts_replace_each_other(project: Path, engine: Speaking) -> None:
    """Of either estimator a variant has the other. Expected: its hosts; the groups can be read below the table."""
    groups = [InstanceGroup("feed", "local", 1), InstanceGroup("train", "local", 2)]
    counted = Estimator(entry_point="train.py", engine=engine, instance_type="local", instance_count=2)
    grouped = Estimator(entry_point="train.py", engine=engine, instance_groups=groups)
    found = compare(counted, {"a": {"instance_groups": groups}}, repeats=1, baselines=False)
    assert found.variants[0].shape == "3 x 1"
    assert "a has its own instance_groups ['feed: local x 1', 'train: local x 2']" in str(found)
    found = compare(grouped, {"a": {}, "b": {"instance_count": 2}}, repeats=1, baselines=False)
    assert [v.shape for v in found.variants] == ["3 x 1", "2 x 1"]
    with pytest.raises(SpecError, match="a: instance_count can't go with instance_groups") as caught:
        compare(counted, {"a": {"instance_groups": groups, "instance_count": 2}}, baselines=False)
    assert len(caught.value.faults) == 1


def test_hosts_without_ranks_are_paid_and_say_nothing(
    project: Path, engine: Speaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """feed(1) and train(1) with two ranks; all three processes say 64 samples a step. Expected: 1 x 2, 128 a step."""

    def logs(name: str, cursor: Mapping[str, int]) -> LogPage:
        of = [("algo-1", None), ("algo-2", 0), ("algo-2", 1)]
        said = [(who, i, Record(i, i / 100, {"samples": 64.0}, i)) for i in range(9) for who in of]
        lines = [LogLine(i, host, rank, encode(record)) for (host, rank), i, record in said]
        return LogPage([] if cursor else lines, {"n": 1})

    monkeypatch.setattr(engine, "logs", logs)
    groups = [InstanceGroup("feed", "local", 1), InstanceGroup("train", "local", 1)]
    estimator = Estimator(entry_point="train.py", engine=engine, instance_groups=groups)
    torch = {"torch_distributed": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["train"]}
    found = compare(estimator, {"a": torch}, repeats=1, baselines=False, price_per_hour=100.0)
    assert (found.variants[0].shape, found.variants[0].others) == ("1 x 2", 1)
    assert (found.figures["a"].samples_per_step, found.figures["a"].cost) == (128, pytest.approx(2.0))
    assert "a has 1 more host, without ranks, which only its cost counts" in str(found)
    assert Comparison.from_json(found.to_json()) == found


def test_unequal_hosts_are_said_so(project: Path, engine: Speaking) -> None:
    """Two groups with 3 and 1 ranks a host: 4 on 2 hosts, and not 2 x 2."""
    groups = [InstanceGroup("a", "local", 1), InstanceGroup("b", "local", 1)]
    estimator = Estimator(entry_point="train.py", engine=engine, instance_groups=groups)
    unequal = {"hdp": {"enabled": True, "processes_per_host": {"a": 3, "b": 1}}, "instance_groups": ["a", "b"]}
    found = compare(estimator, {"a": unequal}, repeats=1, baselines=False)
    assert "4 ranks on 2 hosts" in str(found) and "2 x 2" not in str(found)


@pytest.mark.parametrize("estimator", [None, "train.py", Estimator])
def test_what_is_no_estimator_is_refused(estimator: Any) -> None:
    with pytest.raises(SpecError, match=r"estimator is .*; expected an Estimator, or one of its kinds"):
        compare(estimator, {"a": {}})


def test_hosts_of_several_types_have_no_processes_apart(project: Path, engine: Speaking) -> None:
    """The estimator has instance groups. Expected: the baseline of one process, and no other."""
    groups = [InstanceGroup("a", "local", 1), InstanceGroup("b", "local", 1)]
    estimator = Estimator(entry_point="train.py", engine=engine, instance_groups=groups)
    found = compare(estimator, {"hdp": {**HDP, "instance_groups": ["a", "b"]}}, repeats=1)
    assert [(v.label, v.ranks) for v in found.variants] == [("hdp", 4), ("one process", 1)]
    assert list(engine.requests.values())[-1].training_job["ResourceConfig"]["InstanceCount"] == 1


def test_progress_is_a_line_a_job_and_quiet_is_quiet(estimator: Estimator, capsys: pytest.CaptureFixture[str]) -> None:
    compare(estimator, {"a": {}}, repeats=2, baselines=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 jobs one after another on the memory engine: a; 2 of each"
    assert lines[1].startswith("1 of 2: a, repeat 1 of 2: 10.0 ms a step (19 steps, job train-a-")
    assert len(lines) == 3
    compare(estimator, {"a": {}}, repeats=1, baselines=False, quiet=True)
    assert capsys.readouterr().out == ""


# ---- hdp compare -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hpd"], "'hpd' is unknown; did you mean 'hdp'?; expected one of hdp, horovod, gloo"),
        (["a={"], "'{' isn't JSON"),
        (["hdp", 'hdp={"hdp": {}}'], "a label is there twice"),
        (["--hyperparameter", "epochs", "hdp"], "'epochs'; expected NAME=VALUE"),
        (["--input", "a=/x", "--input", "a=/y", "hdp"], "'a' is given twice"),
        (["--save", "/no/such/dir/x.json", "hdp"], "x.json: there is no folder /no/such/dir; make it first"),
        (["--plot", "/no/such/dir/x.png", "hdp"], "x.png: there is no folder /no/such/dir; make it first"),
        (["--save", "/", "hdp"], "/ is a folder; expected a file's path"),
        (["--save", "x" * 300, "hdp"], "can't be written: File name too long; choose another place"),
        (["--plot", "x.jason", "hdp"], "x.jason ends in '.jason'; expected .png, .svg, .pdf"),
        (["--no-baselines", "--apart-hyperparameter", "a=1", "hdp"], "is for baselines, which --no-baselines leaves"),
    ],
)
def test_what_the_command_refuses(arguments: Sequence[str], message: str, project: Path) -> None:
    done = CliRunner().invoke(app, ["compare", "train.py", *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_a_folder_of_somebody_else_is_refused_before_any_job(project: Path) -> None:
    """As another user than the folder's; root may write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(typer.BadParameter, match=r"x\.json can't be written by this user; choose another"):
                _check_writable(Path(folder, "x.json"), "--save")
        finally:
            os.seteuid(user)


def test_a_plot_without_matplotlib_is_refused_before_any_job(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else real(name))
    done = CliRunner().invoke(app, ["compare", "train.py", "--plot", "x.png", "hdp"])
    assert done.exit_code == 2 and "needs matplotlib" in done.output


def test_the_command_shows_every_fault_and_starts_nothing(project: Path, home: Path) -> None:
    done = CliRunner().invoke(app, ["compare", "tran.py", "--network", "fast", "hdp", 'b={"hdp": {"enabled": 1}}'])
    assert isinstance(done.exception, SpecError)
    assert "tran.py" in str(done.exception)
    assert not home.exists()


def test_short_forms_stand_for_dictionaries(
    project: Path, engine: Speaking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """hdp, gloo and one in JSON, on the engine of the tests. Expected: their distributions, the options, the files."""
    monkeypatch.setattr("hdp.estimator.prepare._named", lambda name, session: (engine, target(engine)))
    out = tmp_path / "out.json"
    arguments = ["--ranks", "2", "--hyperparameter", "epochs=2", "--environment", "STEPS=5", "--repeats", "1"]
    more = ["--no-baselines", "--save", str(out), "hdp", "gloo", 'alone={"distribution": {}, "instance_count": 1}']
    done = CliRunner().invoke(app, ["compare", "train.py", "--input", "training=data", *arguments, *more])
    assert done.exit_code == 0, done.output
    found = Comparison.load(out)
    per_host = {"enabled": True, "processes_per_host": 2}
    assert [v.distribution for v in found.variants] == [{"hdp": per_host}, {"torch_distributed": per_host}, {}]
    assert [v.shape for v in found.variants] == ["2 x 2", "2 x 2", "1 x 1"]
    request: JobRequest = next(iter(engine.requests.values()))
    source = request.training_job["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert source == (project / "data").as_uri()
    assert request.training_job["HyperParameters"]["epochs"] == "2"
    assert "written: " in done.output


def test_a_file_that_cannot_be_written_takes_no_other_with_it(
    project: Path, engine: Speaking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first file's folder goes away while jobs run. Expected: the table, the plot, and then the error."""
    monkeypatch.setattr("hdp.estimator.prepare._named", lambda name, session: (engine, target(engine)))
    gone, plot = tmp_path / "gone", tmp_path / "out.png"
    gone.mkdir()
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda request: (shutil.rmtree(gone, ignore_errors=True), submit(request)))
    arguments = ["--no-baselines", "--repeats", "1", "--save", str(gone / "x.json"), "--plot", str(plot), "hdp"]
    done = CliRunner().invoke(app, ["compare", "train.py", *arguments])
    assert isinstance(done.exception, HdpError) and "x.json can't be written: No such file" in str(done.exception)
    assert "quartiles" in done.output and f"written: {plot}" in done.output
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize("save", [True, False])
def test_a_failure_in_a_shell_names_the_option_and_the_file(
    save: bool, project: Path, engine: Speaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdp.estimator.prepare._named", lambda name, session: (engine, target(engine)))
    failing = 'b={"environment": {"FAIL": "1"}}'
    arguments = ["--no-baselines", *(["--save", "out.json"] if save else []), failing]
    done = CliRunner().invoke(app, ["compare", "train.py", *arguments])
    assert done.exit_code == 1 and isinstance(done.exception, HdpError)
    said = str(done.exception)
    assert said.startswith("variant 'b', repeat 1: job train-b-") and "failed: rank 1: boom" in said
    kept = " and in out.json" if save else "; --save FILE keeps it"
    assert said.endswith(f"\nwhat was run until then is in the table{kept}; --keep-going goes on with the other jobs")
    assert "keep_going=" not in said and ".comparison" not in said
    assert not save or Comparison.load("out.json").runs


def test_ctrl_c_in_the_command_keeps_what_was_run(
    project: Path, engine: Speaking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hdp.estimator.prepare._named", lambda name, session: (engine, target(engine)))
    out = tmp_path / "out.json"
    stopped = 'b={"environment": {"CTRL_C": "1"}}'
    done = CliRunner().invoke(app, ["compare", "train.py", "--no-baselines", "--save", str(out), "hdp", stopped])
    assert done.exit_code == 130
    assert [run.label for run in Comparison.load(out).runs] == ["hdp"]


def target(engine: Speaking) -> Any:
    from hdp.estimator.rules import Target

    return Target(engine.name, engine.capabilities())
