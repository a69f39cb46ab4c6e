"""The steps of `device`: what each starts, how long it may take, and what it found."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import device_trace
from allreduce import DEVICES
from onehost import OneHost
from processes import Started, end_all

__all__ = ["DEVICES", "STEPS", "Plan", "Step", "run"]

NOMINAL = 55.0
"""GB/s each way of pinned copies on the machine that the bounds are told for: an H200 on PCI Express 5 x16."""
_LEAST_LEFT = 10.0  # seconds; a step that would have less isn't begun
_FAKE_DRIVER = "libhdp_fake_cuda.so"
_LANES = 2  # programs of one shape that share the checks


@dataclass(frozen=True)
class Plan:
    """What is run, and where. deadline: of all steps, by time.monotonic()."""

    root: Path
    out: Path
    device: str
    quick: bool
    deadline: float

    @property
    def library(self) -> Path:
        """The core that the step "build" makes."""
        return self.root / "build" / "device" / "libhdp_core.so"

    def environ(self) -> dict[str, str]:
        """Of everything that is started."""
        own = {"HDP_TIMEOUT_SECONDS": "60", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if self.library.exists():
            own["HDP_CORE_LIBRARY"] = str(self.library)
        driver = self.library.with_name(_FAKE_DRIVER)
        if self.device == "fake" and driver.exists():
            own["HDP_CUDA_DRIVER"] = str(driver)
        return {**os.environ, **own}

    def script(self, name: str) -> list[str]:
        """The start of a command that runs a script of this folder."""
        return [sys.executable, str(self.root / "benchmarks" / name)]


@dataclass
class Step:
    """What came of a step. faults: why it failed, a line each; found: what it measured, by part."""

    name: str
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Command:
    """One program, its log's name, and what it may leave as JSON."""

    name: str
    argv: Sequence[str]
    result: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def run(name: str, plan: Plan) -> Step:
    """Run a step within its own limit and what is left of the whole."""
    step, began = Step(name), time.monotonic()
    limit, work = STEPS[name]
    if plan.deadline - began < _LEAST_LEFT:
        step.faults.append("not begun: the time of all steps is over")
        return step
    try:
        work(plan, step, min(plan.deadline, began + limit))
    except Exception as exc:
        step.faults.append(f"{type(exc).__name__}: {exc}")
    step.seconds = round(time.monotonic() - began, 1)
    return step


def _together(commands: Sequence[Command], plan: Plan, step: Step, deadline: float) -> None:
    """Run commands beside each other; take what they leave into `step.found`, and what goes wrong into its faults."""
    here, environ = OneHost(), plan.environ()
    started: list[Started] = []
    try:
        for command in commands:
            if command.result:
                command.result.unlink(missing_ok=True)
            log = plan.out / f"{command.name}.log"
            with log.open("wb") as file:
                file.write(f"$ {' '.join(map(str, command.argv))}\n".encode())
                file.flush()
                process = here.popen(
                    0,
                    [str(word) for word in command.argv],
                    env={**environ, **command.env},
                    cwd=plan.root,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            started.append(Started(command.name, process, log))
        while any(one.process.poll() is None for one in started) and time.monotonic() < deadline:
            time.sleep(0.05)
        late = [one for one in started if one.process.poll() is None]
    finally:
        end_all(started)
    for command, one in zip(commands, started, strict=True):
        if one in late:
            step.faults.append(f"{one.name} was ended after its time. {one.log} ends: {one.tail(300)}")
        elif one.process.returncode:
            step.faults.append(f"{one.name} has exit code {one.process.returncode}. {one.log} ends: {one.tail(600)}")
        if command.result and command.result.exists():
            step.found[one.name] = json.loads(command.result.read_text())
        elif command.result:
            step.faults.append(f"{one.name} left no results")


# -- the steps -------------------------------------------------------------------------------------------------------


def _build(plan: Plan, step: Step, deadline: float) -> None:
    """The core alone: the TensorFlow operations aren't needed here. Where it fails, no older one is measured."""
    plan.library.unlink(missing_ok=True)
    cmake = ["cmake"] if shutil.which("cmake") else [sys.executable, "-m", "cmake"]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    source, target = plan.root / "runtime" / "csrc", plan.library.parent
    configure = [*cmake, "-S", source, "-B", target, *generator, "-DCMAKE_BUILD_TYPE=Release"]
    _together([Command("configure", configure)], plan, step, deadline)
    if not step.faults:
        targets = ["hdp_core", *(["hdp_fake_cuda"] if plan.device == "fake" else [])]
        build = [*cmake, "--build", target, "--target", *targets, "--parallel", os.cpu_count() or 1]
        _together([Command("build", build)], plan, step, deadline)
    if not step.faults and not plan.library.exists():
        step.faults.append(f"{plan.library} was not made")


def _copies(plan: Plan, step: Step, deadline: float) -> None:
    result = plan.out / "copies.json"
    size = ["--size", "8MiB"] if plan.quick else []
    device = "cuda" if plan.device == "cuda" else "cpu"
    argv = [*plan.script("copies.py"), "--device", device, *size, "--json", result]
    _together([Command("copies", argv, result)], plan, step, deadline)


def _checks(plan: Plan, step: Step, deadline: float) -> None:
    """tests/torch/device_checks.py on two ranks of one host, and on two hosts, under torchrun."""
    script = plan.root / "tests" / "torch" / "device_checks.py"
    listed = plan.out / "checks.log"
    _together([Command("checks", [sys.executable, script, "--list"])], plan, step, deadline)
    names = [line for line in listed.read_text().splitlines()[1:] if line.isidentifier()]
    if step.faults or not names:
        step.faults += [] if step.faults else [f"{script} has no checks"]
        return
    lanes = [lane for lane in (names[i::_LANES] for i in range(_LANES)) if lane]
    shapes = ((1, 2),) if plan.quick else ((1, 2), (2, 2))
    commands = []
    for nodes, ranks in shapes:
        for number, lane in enumerate(lanes):
            name, port = f"checks-{nodes}x{ranks}-{number}", _free_port()
            result = plan.out / f"{name}.json"
            for node in range(nodes):
                place = [f"--nnodes={nodes}", f"--node_rank={node}", f"--nproc_per_node={ranks}"]
                argv = [sys.executable, "-m", "torch.distributed.run", *place, "--master_addr=127.0.0.1"]
                argv += [f"--master_port={port}", script, "--device", plan.device, "--json", result, *lane]
                commands.append(Command(f"{name}-node{node}" if node else name, argv, None if node else result))
    _together(commands, plan, step, deadline)
    for name, found in step.found.items():
        step.faults += [f"{name}: {check}: {why}" for check, why in found["failed"].items()]
        missing = set(lanes[int(name.rsplit("-", 1)[1])]) - set(found["checks"]) - set(found["failed"])
        if missing:
            step.faults.append(f"{name}: not run: {', '.join(sorted(missing))}")


def _allreduce(plan: Plan, step: Step, deadline: float) -> None:
    """One shape after the other, so that nothing disturbs the clock."""
    rate = _copy_rate(plan)
    bound = ["--copy-rate", f"{rate:.6g}"] if rate else []
    sizes = "64KiB,1MiB" if plan.quick else "1MiB,16MiB,64MiB,256MiB"
    effort = ["--rounds", 2, "--iterations", 3] if plan.quick else ["--rounds", 3, "--seconds", 0.3]
    shapes = ((1, 2),) if plan.quick else ((1, 4), (2, 2), (1, 2))
    for hosts, ranks in shapes:
        name = f"allreduce-{hosts}x{ranks}"
        result = plan.out / f"{name}.json"
        argv = [
            *plan.script("allreduce.py"),
            "--device",
            plan.device,
            "--peers",
            "hdp,gloo",
            "--loopback",
            "--together",
        ]
        argv += ["--hosts", hosts, "--ranks", ranks, "--sizes", sizes, *effort, *bound, "--json", result]
        _together([Command(name, argv, result)], plan, step, deadline)


def _copy_rate(plan: Plan) -> float | None:
    """GB/s each way, both at once, as the step "copies" of this or an earlier run measured it."""
    path = plan.out / "copies.json"
    return float(json.loads(path.read_text())["both_pinned"]) if path.exists() else None


def _train(plan: Plan, step: Step, deadline: float) -> None:
    cases = (("efficientnet_b0_224", 32), ("efficientnet_b4_380", 16))
    if plan.quick:
        cases = (("efficientnet_tiny" if plan.device != "cuda" else "efficientnet_b0", 4),)
    effort = ["--rounds", 2, "--steps", 2, "--curve", 3] if plan.quick else ["--rounds", 3, "--steps", 5, "--curve", 8]
    most = 2 if plan.quick else 4
    for model, batch in cases:
        for ranks in dict.fromkeys((most, 2)):  # one process by itself takes its turn beside the most
            name = f"train-{model}-1x{ranks}"
            result = plan.out / f"{name}.json"
            argv = [*plan.script("efficientnet.py"), "--device", plan.device, "--amp", "bf16", "--backends", "hdp,gloo"]
            argv += ["--hosts", 1, "--ranks", ranks, "--model", model, "--batch", batch, *effort, "--together"]
            argv += [*([] if ranks == most else ["--no-alone"]), "--json", result]
            _together([Command(name, argv, result)], plan, step, deadline)
    _trace(plan, step, deadline, *cases[-1])


def _trace(plan: Plan, step: Step, deadline: float, model: str, batch: int) -> None:
    """The last case again, with a timeline, in which the host waits: a stream's waits are in no timeline."""
    name, folder = "trace", plan.out / "timeline"
    shutil.rmtree(folder, ignore_errors=True)
    result = plan.out / f"{name}.json"
    ranks = 2 if plan.quick else 4
    argv = [
        *plan.script("efficientnet.py"),
        "--device",
        plan.device,
        "--amp",
        "bf16",
        "--backends",
        "hdp",
        "--no-alone",
    ]
    argv += ["--hosts", 1, "--ranks", ranks, "--model", model, "--batch", batch, "--rounds", 1, "--steps", 5]
    env = {"HDP_TIMELINE": "1", "HDP_TIMELINE_DIR": str(folder), "HDP_CUDA_WAIT": "host"}
    _together([Command(name, [*argv, "--json", result], result, env)], plan, step, deadline)
    if name in step.found:
        sample = step.found.pop(name)["measured"]["1"]["samples"]["hdp"][0]
        windows = [(begin, begin + seconds) for begin, seconds in zip(sample["begun"], sample["steps"], strict=True)]
        step.found[name] = {"model": model, "ranks": ranks, **device_trace.communication(folder, windows)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


STEPS: dict[str, tuple[float, Callable[[Plan, Step, float], None]]] = {
    "build": (120.0, _build),
    "copies": (40.0, _copies),
    "checks": (100.0, _checks),
    "allreduce": (150.0, _allreduce),
    "train": (180.0, _train),
}
"""By name: seconds that it may take, and what it does."""
