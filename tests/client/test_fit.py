"""fit(): the order of things, what comes back, and what a caller may rely on."""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.hyperparameters import decode
from hdp.estimator import Estimator, HdpError, JobNotFound, PyTorch, SpecError, TrainingJob

from .conftest import MemoryEngine


def test_fit_uploads_then_submits_and_returns_the_handle(project: Path, engine: MemoryEngine) -> None:
    """One upload, one submission, in this order; the handle is a TrainingJob of that name."""
    estimator = PyTorch("train.py", engine=engine)
    job = estimator.fit(job_name="one", logs=None)
    assert [verb for verb, _ in engine.calls] == ["put_bundle", "submit"]
    assert isinstance(job, TrainingJob)
    assert job.name == "one"
    assert estimator.latest_training_job is job


def test_the_archive_is_where_the_request_says(project: Path, engine: MemoryEngine) -> None:
    """The uploaded archive has the script, and its URI is in the request."""
    PyTorch("train.py", engine=engine).fit(job_name="one", logs=None)
    ((digest, archive),) = engine.bundles.items()
    assert hashlib.sha256(archive).hexdigest() == digest
    values = engine.requests["one"].training_job["HyperParameters"]
    assert decode(values["sagemaker_submit_directory"]) == engine.bundle_uri(digest)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == [decode(values["sagemaker_program"])] == ["train.py"]


def test_plan_and_fit_make_the_same_request(project: Path, engine: MemoryEngine) -> None:
    """A dry run is the real thing."""
    estimator = PyTorch("train.py", engine=engine, hyperparameters={"lr": 0.1})
    planned = estimator.plan("s3://b/x/", job_name="same").request
    estimator.fit("s3://b/x/", job_name="same", logs=None)
    assert engine.requests["same"] == planned


def test_fit_shows_the_log(project: Path, engine: MemoryEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """logs="All": the rank's line is on standard output; logs=None: it isn't."""
    estimator = PyTorch("train.py", engine=engine)
    estimator.fit(job_name="one")
    assert "hello from rank 0" in capsys.readouterr().out
    estimator.fit(job_name="two", logs=None)
    assert "hello from rank 0" not in capsys.readouterr().out


def test_fit_without_wait_follows_nothing(
    project: Path, engine: MemoryEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """wait=False: submitted, nothing shown."""
    job = PyTorch("train.py", engine=engine).fit(wait=False)
    assert engine.calls[-1] == ("submit", job.name)
    assert capsys.readouterr().out == ""


def test_two_fits_are_two_jobs(project: Path, engine: MemoryEngine) -> None:
    """latest_training_job is the second; model_data is its own."""
    estimator = PyTorch("train.py", engine=engine)
    estimator.fit(job_name="one", logs=None)
    estimator.fit(job_name="two", logs=None)
    assert estimator.latest_training_job is not None
    assert estimator.latest_training_job.name == "two"
    assert estimator.model_data == "file:///models/two.tar.gz"


def test_there_is_no_model_before_a_job(project: Path, engine: MemoryEngine) -> None:
    """model_data before fit: an error that says what to do; no latest job."""
    estimator = PyTorch("train.py", engine=engine)
    assert estimator.latest_training_job is None
    with pytest.raises(HdpError, match="this estimator has started no job; call fit"):
        _ = estimator.model_data


def test_bad_logs_are_refused_before_the_start(project: Path, engine: MemoryEngine) -> None:
    """logs="Al": did you mean."""
    with pytest.raises(SpecError, match="logs is 'Al'; expected 'All' or None; did you mean 'All'"):
        PyTorch("train.py", engine=engine).fit(logs="Al")
    assert engine.calls == []


@pytest.mark.parametrize("wait", ["no", 0, None])
def test_wait_is_true_or_false(wait: Any, project: Path, engine: MemoryEngine) -> None:
    """Anything else is refused before the start."""
    with pytest.raises(SpecError, match=r"wait is .*; expected True or False"):
        PyTorch("train.py", engine=engine).fit(wait=wait, logs=None)
    assert engine.calls == []


@pytest.mark.parametrize("logs", [1, 0, ["All"], "yes"])
def test_logs_of_another_kind_are_refused(logs: Any, project: Path, engine: MemoryEngine) -> None:
    """1 and 0 are no bools here."""
    with pytest.raises(SpecError, match=r"logs is .*; expected 'All' or None"):
        PyTorch("train.py", engine=engine).fit(logs=logs)
    assert engine.calls == []


def test_unreadable_code_comes_with_the_other_faults(
    project: Path, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script can't be read, and the name is bad: two lines."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(SpecError) as raised:
        PyTorch("train.py", engine=engine).fit(job_name="bad_name")
    assert [f[:21] for f in raised.value.faults] == ["job_name='bad_name': ", "train.py can't be rea"]


def test_code_that_went_away_is_noticed_by_fit(project: Path, engine: MemoryEngine) -> None:
    """The script is deleted between construction and fit."""
    estimator = PyTorch("train.py", engine=engine)
    (project / "train.py").unlink()
    with pytest.raises(SpecError, match=r"entry_point: train\.py doesn't exist; check the path"):
        estimator.fit()
    assert engine.calls == []


def test_fit_warns_of_what_stays_at_home(project: Path, engine: MemoryEngine, caplog: pytest.LogCaptureFixture) -> None:
    """A secret beside the script: one warning of our logger."""
    (project / "id_rsa").write_text("x")
    with caplog.at_level(logging.WARNING, logger="hdp.estimator"):
        PyTorch("train.py", source_dir=".", engine=engine).fit(logs=None)
    assert [r.message for r in caplog.records] == [
        "id_rsa looks like a secret and stays here; add '!id_rsa' to .hdpignore to send it"
    ]


def test_attach_names_an_unknown_job(home: Path) -> None:
    """attach asks the engine; nothing of that name is there."""
    with pytest.raises(JobNotFound, match="no-such-job"):
        Estimator.attach("no-such-job")
