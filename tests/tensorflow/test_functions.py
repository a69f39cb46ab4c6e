"""The functions of hdp.tensorflow, on real ranks and servers, against NumPy.

Ranks are on hosts 2 + 2, 1 + 1 + 1 and 1 + 2; operations native and in Python; TensorFlow this one's, 2.15 and 2.12.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import versions
import world

pytestmark = pytest.mark.timeout(460)  # where much else runs
HERE = Path(__file__).parent

#: All checks that function_ranks.py can run.
NAMES = [
    name
    for file in ("value_checks", "gradient_checks", "state_checks", "order_checks")
    for name in re.findall(r"^def check_(\w+)", (HERE / f"{file}.py").read_text(), re.MULTILINE)
]
LONG = {"memory", "many_in_flight", "forked_child"}
#: These go through dtypes, shapes or arguments, one by one.
DETAILED = {
    "allreduce_of_every_dtype",
    "allreduce_with_shapes_unknown",
    "scales",
    "allgather",
    "reducescatter",
    "gradients_of_others",
}
SIDE_BY_SIDE = {"named_in_any_order", "many_in_flight"}
IN_PYTHON = {"HDP_TENSORFLOW_OPS": "python"}


def check(names, sizes, tmp_path, operations, **options):
    """Run `names` on every rank; each must have been checked, with `operations`."""
    environ = {"CHECK_FOLDER": str(tmp_path), **options.pop("environ", {})}
    for output in world.together("function_ranks.py", *names, sizes=sizes, environ=environ, seconds=400, **options):
        assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == list(names)
        assert f"operations {operations} " in output


def without(*left_out):
    return [n for n in NAMES if not any(n in names for names in left_out)]


def test_quickly(tmp_path):
    """What takes little of it, on 1 + 2 ranks, with native operations."""
    check(without(LONG, DETAILED), (1, 2), tmp_path, "native")


@pytest.mark.slow
def test_on_two_hosts_of_two(tmp_path):
    """What `test_quickly` leaves out, and test_native.py hasn't."""
    names = DETAILED | {"forked_child"}
    check([n for n in NAMES if n in names], (2, 2), tmp_path, "native")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_on_three_hosts_in_python(tmp_path):
    """The operations that stand in where the native ones can't be had; three hosts of one rank."""
    names = without(LONG, SIDE_BY_SIDE, DETAILED - {"allreduce_of_every_dtype"})
    check(names, (1, 1, 1), tmp_path, "numpy_function", environ=IN_PYTHON)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_with_tensorflow_2_15(tmp_path):
    """The same library file serves it."""
    python = versions.interpreter("2.15")
    check(without(LONG, DETAILED), (1, 2), tmp_path, "native", python=python)


@pytest.mark.slow
def test_with_tensorflow_2_12(tmp_path):
    """It has no asynchronous kernels in its C API."""
    python = versions.interpreter("2.12")
    names = without(SIDE_BY_SIDE, LONG, DETAILED)
    check(names, (1, 2), tmp_path, "numpy_function", python=python)


@pytest.mark.slow
def test_without_a_launcher():
    """Errors before `init`, a world of one, `shutdown`, and all of it again."""
    environ = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE", "HDP_SERVER_SOCKET")}
    command = [sys.executable, str(HERE / "function_ranks.py"), "without_init"]
    more = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env={**environ, **more}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "ok without_init" in done.stdout


# ---- errors: on every rank, within the timeout, with what and who ----------------------------------------------------

#: case -> kind of error, words of its text.
FAILURES = {
    "shape": ("InvalidArgumentError", ["CollectiveMismatch", "float32[2]", "float32[3]", "rank 3"]),
    "shape_of_the_same_size": (
        "InvalidArgumentError",
        ["CollectiveMismatch", "float32[2, 3]", "float32[3, 2]", "rank 3"],
    ),
    "shape_in_a_group": ("InvalidArgumentError", ["CollectiveMismatch", "float32[2, 3", "float32[3, 2", "rank 3"]),
    "shape_of_rows": ("InvalidArgumentError", ["CollectiveMismatch", "[2, 3]", "[3, 2]", "rank 3"]),
    "dtype": ("InvalidArgumentError", ["CollectiveMismatch", "float32", "float64", "rank 3"]),
    "op": ("InvalidArgumentError", ["CollectiveMismatch", "sum", "max", "rank 3"]),
    "root": ("InvalidArgumentError", ["CollectiveMismatch", "root 0", "root 1", "rank 3"]),
    "missing": ("DeadlineExceededError", ["CollectiveTimeout", "allreduce loss", "rank 3"]),
    "gradient": ("CollectiveMismatch", ["weight_two", "rank 3 has no gradient", "rank 0 has a gradient float32"]),
    "gradient_shape": ("CollectiveMismatch", ["weight_one", "[2, 3]", "[3, 2]", "rank 3"]),
    "other_variables": ("CollectiveMismatch", ["weight_two", "[2]", "[3]", "rank 3"]),
    "fewer_variables": ("CollectiveMismatch", ["rank 0 has 2, rank 3 has 1"]),
    "splits": ("InvalidArgumentError", ["InvalidCollective", "rows for all ranks have 2006 elements", "has 8"]),
    "negative_splits": ("InvalidArgumentError", ["below 0"]),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What each rank got in each case: [error, text, seconds]."""
    folder, cases = tmp_path_factory.mktemp("failures"), [*FAILURES, "kind", "shutdown_in_flight"]
    with contextlib.ExitStack() as stack:
        worlds = [stack.enter_context(world._Servers([2, 2], start_timeout=110)) for _ in cases]
        places = [[c, [w.socket(0), w.socket(1)], str(w.secret)] for c, w in zip(cases, worlds, strict=True)]
        file = folder / "worlds.json"
        file.write_text(json.dumps(places))
        outputs = world.together("failure_ranks.py", file, sizes=(2, 2), environ={"HDP_TIMEOUT_SECONDS": "5"})
    return [json.loads(re.search(r"^RESULTS (.*)$", output, re.MULTILINE).group(1)) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_every_rank_raises(failures, case):
    kind, words = FAILURES[case]
    ranks = range(3) if case in ("missing",) else range(3, 4) if "splits" in case else range(4)
    for rank in ranks:
        error, text, seconds = failures[rank][case]
        assert error == kind, f"rank {rank}: {error} {text}"
        assert all(word in text for word in words), f"rank {rank}: {text}"
        assert seconds < 20
    if "splits" in case:  # the mistake is one rank's, and the others wait for it, or are told to give less than nothing
        waiting = ["DeadlineExceededError", "AbortedError", *(["InvalidArgumentError"] if "negative" in case else [])]
        assert all(failures[rank][case][0] in waiting for rank in range(3))


@pytest.mark.slow
def test_other_kind_with_the_same_name(failures):
    """A name belongs to a kind: these two wait for each other, and say for what."""
    for rank in range(4):
        error, text, _ = failures[rank]["kind"]
        assert error in ("DeadlineExceededError", "AbortedError"), text
    assert any("broadcast x" in failures[3]["kind"][1] or "allreduce x" in failures[r]["kind"][1] for r in range(4))


@pytest.mark.slow
def test_shutdown_fails_what_is_in_flight(failures):
    """The rank that shuts down, and those that wait for it."""
    assert failures[3]["shutdown_in_flight"][0] == "AbortedError"
    assert "shut down" in failures[3]["shutdown_in_flight"][1]
    for rank in range(3):
        error, text, _ = failures[rank]["shutdown_in_flight"]
        assert error == "AbortedError", text
        assert "PeerLost" in text
        assert "rank 3" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exits", "killed", "exits_in_flight"])
def test_a_rank_goes(how):
    """While the others reduce: they raise at once, and name it. Nothing hangs or crashes at exit."""
    outputs, codes = world.run("leaving_ranks.py", how, sizes=(1, 2), seconds=120)
    assert codes == [0, 0, -signal.SIGKILL if how == "killed" else 0], "\n".join(outputs)
    for output in outputs[:2]:
        raised = re.search(r"^RAISED (\w+) (.*)", output, re.MULTILINE)
        assert raised, output
        assert raised.group(1) == "AbortedError"
        assert "PeerLost" in output
        assert "rank 2" in output
    assert "Fatal" not in outputs[2], outputs[2]
