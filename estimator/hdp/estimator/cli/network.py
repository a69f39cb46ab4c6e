"""``hdp topology`` and ``hdp explain``: a job's or an emulated network's hosts and links, and what operations cost.

Measuring and computing are the runtime's, which the client doesn't import: they run as programs of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdp.contract import units
from hdp.contract.errors import ContractError, EngineError, SpecError
from hdp.estimator import outputs
from hdp.estimator.cli import completing

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = (
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall", "send", "recv",
    "barrier",
)  # fmt: skip
#: What sums of float32 travel as, and how much shorter they are then.
WIRES = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}

JsonOption = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]
JobArgument = Annotated[
    str | None,
    typer.Argument(
        help="Name of a job that ran with HDP_TOPOLOGY=1.", show_default=False, autocompletion=completing.job_names
    ),
]
HostsOption = Annotated[int | None, typer.Option("--hosts", min=1, help="Number of hosts.", show_default=False)]
RanksOption = Annotated[int, typer.Option("--ranks", min=1, help="Ranks a host.")]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate",
        help="Of each host's link: 250mbit, 1gbit.",
        show_default=False,
        autocompletion=completing.of("100mbit", "1gbit", "10gbit", "25gbit", "100gbit"),
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        help="Cluster of a job that ran with HDP_TOPOLOGY=1.",
        show_default=False,
        autocompletion=completing.job_names,
    ),
]
TopologyOption = Annotated[
    Path | None, typer.Option("--topology", help="What `hdp topology --json` wrote.", show_default=False)
]


def topology(
    name: JobArgument = None,
    hosts: HostsOption = None,
    ranks: RanksOption = 1,
    rate: RateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show hosts and links as measured, of a job or emulated.

    With --hosts a network is emulated on this machine, and measured.

    A job measures them where its environment has HDP_TOPOLOGY=1.
    """
    if (name is None) == (hosts is None):
        raise typer.BadParameter("give either a job's name, or --hosts to emulate a network", param_hint="NAME")
    if hosts is not None:
        if rate is not None:
            _read(units.parse_rate, rate, "--rate")
        found = ask("hdp.runtime.rehearsal", {"hosts": hosts, "ranks": ranks, "rate": rate})
    else:
        if rate is not None:
            raise typer.BadParameter("is for --hosts; a job's links are as they are", param_hint="--rate")
        assert name is not None
        found = topology_of_job(name)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from hdp.estimator.cli.network_tables import topology_report
    from hdp.estimator.cli.text import show

    show(*topology_report(found))


def explain(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"The operation: {', '.join(KINDS)}.", show_default=False, autocompletion=completing.of(*KINDS)
        ),
    ],
    size: Annotated[
        str, typer.Argument(help="Of the whole array of a rank: 64MiB. For pieces, of all of them.")
    ] = "64MiB",
    hosts: HostsOption = None,
    ranks: RanksOption = 1,
    rate: RateOption = None,
    latency: Annotated[
        str | None, typer.Option("--latency", help="From host to host: 50us.", show_default=False)
    ] = None,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Processors of a host.")] = 16,
    emulated: Annotated[bool, typer.Option("--emulated", help="The hosts share these processors.")] = False,
    wire: Annotated[
        str,
        typer.Option("--wire", help=f"What sums travel as: {', '.join(WIRES)}.", autocompletion=completing.of(*WIRES)),
    ] = "float32",
    topology: TopologyOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how an operation goes, and how long it takes.

    Which algorithm, how many chunks, hops and bytes; what limits it; what other algorithms would take.

    The cluster: by --hosts, --ranks, --rate and --latency (4 hosts, 1 rank, 10gbit, 50us), by --topology, or by --job.
    """
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is no collective; there are {', '.join(KINDS)}", param_hint="KIND")
    if wire not in WIRES:
        raise typer.BadParameter(f"{wire!r}; expected one of {', '.join(WIRES)}", param_hint="--wire")
    if wire != "float32" and kind not in ("allreduce", "reduce", "reduce_scatter"):
        raise typer.BadParameter(f"only sums travel as {wire}; {kind} doesn't add", param_hint="--wire")
    asked: dict[str, Any] = {"kind": kind, "size": _read(units.parse_size, size, "SIZE"), "wire_ratio": WIRES[wire]}
    described = {"--hosts": hosts, "--rate": rate, "--latency": latency}
    given = [option for option, value in described.items() if value is not None]
    if (topology is not None) + (job is not None) + bool(given) > 1:
        raise typer.BadParameter("the cluster is described twice; give one of --hosts, --topology and --job")
    if topology is not None:
        asked["topology"] = _topology_in(topology)
    elif job is not None:
        asked["topology"] = topology_of_job(job)
    else:
        asked |= {
            "hosts": 4 if hosts is None else hosts,
            "ranks": ranks,
            "rate": _read(units.parse_rate, rate or "10gbit", "--rate"),
            "latency": _read(units.parse_time, latency or "50us", "--latency"),
            "cores": cores,
            "shared": emulated,
        }
    answer = ask("hdp.collectives.explain", asked)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from hdp.estimator.cli.network_tables import explanation
    from hdp.estimator.cli.text import show

    show(*explanation(answer))


def ask(module: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer of ``python -m module`` to `question`, JSON both. Raises EngineError with the error in the answer.

    Ctrl-C reaches it too, as a member of the terminal's group; it tidies up, and this waits for that.
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
    )  # fmt: skip
    with process:
        try:
            text, complaint = process.communicate(json.dumps(question))
        except KeyboardInterrupt:
            process.wait()
            raise
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        last = complaint.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise EngineError(f"python -m {module} gave no answer: {last[0]}") from None
    if "error" in answer:
        raise EngineError(answer["error"])
    return answer


def topology_of_job(name: str) -> dict[str, Any]:
    """What the job kept: while it runs in its first host's tree, then in its output archive.

    Raises JobNotFound; EngineError where there is none, with the reason.
    """
    from hdp.estimator.engines.registry import get_engine

    answer = get_engine("local").describe(name)
    found = outputs.topology(answer)
    if found is not None:
        return found
    running = answer["TrainingJobStatus"] in ("InProgress", "Stopping")
    raise EngineError(
        f"job {name} has kept no topology{' yet' if running else ''}; a job measures it at its start where "
        f'it runs with environment={{"HDP_TOPOLOGY": "1"}} and its ranks use backend hdp'
    )


def _topology_in(path: Path) -> dict[str, Any]:
    from hdp.contract.files import read_json

    try:
        return read_json(path)
    except ContractError as exc:
        raise typer.BadParameter(str(exc), param_hint="--topology") from exc


def _read(parse: Callable[[str], float], text: str, hint: str) -> float:
    try:
        return parse(text)
    except SpecError as exc:
        raise typer.BadParameter(exc.faults[0], param_hint=hint) from exc
