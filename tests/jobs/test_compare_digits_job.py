"""hdp, Horovod and gloo side by side on the digits, 2 hosts x 2 ranks on links of 1 Gbit/s."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/digits_torch"
HOROVOD = ROOT / "build/peers/horovod/bin/python"
RANKS = {"enabled": True, "processes_per_host": 2}
VARIANTS = {"hdp": {"hdp": RANKS}, "horovod": {"mpi": RANKS}, "gloo": {"torch_distributed": RANKS}}
#: The last two layers but one have 20.7 million parameters.
HIDDEN = [4480, 4096]
STEPS = 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),  # five jobs, about 20 s each where nothing else runs
    pytest.mark.skipif(not HOROVOD.exists(), reason="build/peers/horovod is missing: `make horovod` builds it"),
]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    from hdp.estimator import PyTorch, SpecError, compare

    sys.path.insert(0, str(EXAMPLE))
    from prepare import prepare

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        estimator = PyTorch(
            entry_point="train.py",
            source_dir=str(EXAMPLE),
            instance_count=2,
            hyperparameters={"hidden": HIDDEN, "max-steps": STEPS},
            engine_options={"network": "1gbit", "python": str(HOROVOD)},
        )
        inputs = prepare(tmp_path_factory.mktemp("digits"))
        try:
            estimator.plan(inputs)
        except SpecError as exc:
            if "engine_options.network" in str(exc):
                pytest.skip(f"hosts can't have networks here: {exc}")
            raise
        apart = {"apart": {"hyperparameters": {"batch-size": 16}}}
        yield compare(estimator, VARIANTS, inputs, repeats=1, baselines=apart, quiet=True)


def test_the_model_has_20_million_parameters():
    sys.path.insert(0, str(EXAMPLE))
    from model import make_model

    assert sum(p.numel() for p in make_model(HIDDEN).parameters()) >= 20_000_000


def test_all_three_losses_agree(comparison):
    """The same training, up to the order in which gradients are summed."""
    losses = {label: comparison.figures[label].losses[-1] for label in VARIANTS}
    assert losses["horovod"] == pytest.approx(losses["hdp"], rel=1e-4)
    assert losses["gloo"] == pytest.approx(losses["hdp"], rel=1e-4)


def test_what_was_compared_is_measured(comparison):
    """Gradients of 83 MB a step over a link: more than 0.66 s, the bound, and none of it for processes apart."""
    for label in VARIANTS:
        figures = comparison.figures[label]
        assert figures.step.median > 0.66
        assert figures.exposed.seconds > 0.3
        assert figures.sent_bytes_per_step > 83e6
        assert figures.samples_per_second == pytest.approx(64 / figures.step.median, rel=0.5)
    assert comparison.figures["apart"].sent_bytes < 100_000


def test_the_table_and_the_plot_are_made(comparison, tmp_path):
    table = str(comparison)
    assert [line.split()[0] for line in table.splitlines() if line.split()[:1] and line.split()[0] in VARIANTS][:3] == [
        "hdp", "horovod", "gloo",
    ]  # fmt: skip
    comparison.plot(tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")
    assert list(comparison.to_dataframe()["label"])[:3] == list(VARIANTS)
