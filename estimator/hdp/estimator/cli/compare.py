"""``hdp compare``: the same script under several distributions, side by side."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdp.contract.errors import ComparisonFailed, HdpError
from hdp.estimator.cli import completing
from hdp.estimator.spelling import did_you_mean

if TYPE_CHECKING:
    from hdp.estimator.comparison import Comparison

#: What a short form stands for, without the number of processes: the launcher, and what else its dictionary has.
SHORT: Mapping[str, str] = {
    "hdp": "hdp",
    "horovod": "horovod",
    "gloo": "torch_distributed",
    "torch_distributed": "torch_distributed",
    "mpi": "mpi",
}
#: What `--plot` writes.
PLOTS = (".png", ".svg", ".pdf")


def compare(
    script: Annotated[str, typer.Argument(help="The training script.", show_default=False)],
    variants: Annotated[
        list[str],
        typer.Argument(
            help=f"What to compare: {', '.join(SHORT)}; or LABEL=JSON, a distribution or a dictionary with one.",
            show_default=False,
            autocompletion=completing.of(*SHORT),
        ),
    ],
    source_dir: Annotated[
        str | None, typer.Option("--source-dir", help="Folder that the script is in; all of it travels.")
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="Number of hosts.")] = 2,
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Ranks a host, in short forms.")] = 1,
    instance_type: Annotated[
        str,
        typer.Option(
            "--instance-type",
            help="Type of the hosts; it chooses the engine.",
            autocompletion=completing.of("local", "local_gpu", "docker"),
        ),
    ] = "local",
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            help="Links of the local engine's hosts: 1gbit, or JSON.",
            autocompletion=completing.of("100mbit", "1gbit", "10gbit"),
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A channel: NAME=URI or NAME=PATH. Repeat it for more.")
    ] = None,
    hyperparameters: Annotated[
        list[str] | None, typer.Option("--hyperparameter", help="NAME=VALUE; JSON, else text. Repeat it for more.")
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--environment", help="NAME=VALUE, a variable. Repeat it for more.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="The local engine's interpreter for the jobs.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Jobs of each.")] = 3,
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=0, help="Steps that don't count; a fifth, at most 10.")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines/--no-baselines", help="Also one process alone, and all without communication."),
    ] = True,
    apart: Annotated[
        list[str] | None,
        typer.Option("--apart-hyperparameter", help="NAME=VALUE, where ranks don't communicate: a rank's batch size."),
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on where a job fails.")] = False,
    price: Annotated[float | None, typer.Option("--price", min=0.0, help="Of a host and hour.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write everything to this file, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the plot to this .png, .svg or .pdf.")] = None,
) -> None:
    """Run a script under several distributions, and compare.

    One job runs after another, in an interleaved order.

    The script says when a step ends: hdp.metrics.log(step=..., loss=..., samples=...).
    """
    _check_writable(save, "--save")
    _check_plot(plot)
    options = {"network": None if network is None else _value(network), "python": python}
    wanted = dict(_variant(text, ranks) for text in variants)
    if len(wanted) < len(variants):
        raise typer.BadParameter("a label is there twice; give LABEL=JSON another one", param_hint="VARIANTS")
    from hdp.estimator import Estimator
    from hdp.estimator import compare as run
    from hdp.estimator.comparison import ComparisonInterrupted

    estimator = Estimator(
        entry_point=script,
        source_dir=source_dir,
        instance_type=instance_type,
        instance_count=hosts,
        hyperparameters={k: _value(v) for k, v in _pairs(hyperparameters, "--hyperparameter")},
        environment=dict(_pairs(environment, "--environment")),
        engine_options={k: v for k, v in options.items() if v is not None},
    )
    channels = {name: _uri(where) for name, where in _pairs(inputs, "--input")}
    own = {k: _value(v) for k, v in _pairs(apart, "--apart-hyperparameter")}
    if own and not baselines:
        raise typer.BadParameter(
            "is for baselines, which --no-baselines leaves out", param_hint="--apart-hyperparameter"
        )
    of_baselines = {"apart": {"hyperparameters": own}} if own else baselines
    try:
        found = run(
            estimator, wanted, channels or None, repeats, baselines=of_baselines, warmup=warmup, keep_going=keep_going,
            price_per_hour=price,
        )  # fmt: skip
    except ComparisonFailed as exc:
        until_then: Comparison = exc.comparison  # type: ignore[assignment]  # what compare() attaches
        unwritten = _show(until_then, save, plot)
        raise HdpError("\n".join(_failure(until_then, save, unwritten))) from exc
    except ComparisonInterrupted as exc:
        for line in _show(exc.comparison, save, plot).values():
            typer.echo(f"hdp: {line}", err=True)
        raise typer.Exit(130) from None
    if unwritten := _show(found, save, plot):
        raise HdpError("\n".join(unwritten.values()))


def _show(comparison: Comparison, save: Path | None, plot: Path | None) -> dict[Path, str]:
    """Print the table, and write what can be written. Returns why each of the other files can't."""
    typer.echo(f"\n{comparison}")
    faults = {}
    wanted = [(path, write) for path, write in ((save, comparison.save), (plot, comparison.plot)) if path is not None]
    for path, write in wanted:
        try:
            write(path)
        except HdpError as exc:
            faults[path] = str(exc)
    written = [str(path) for path, _ in wanted if path not in faults]
    if written:
        typer.echo(f"\nwritten: {', '.join(written)}")
    return faults


def _failure(until_then: Comparison, save: Path | None, unwritten: Mapping[Path, str]) -> Iterator[str]:
    """What is said where a job failed, to who has a shell."""
    run = until_then.runs[-1]
    yield f"variant {run.label!r}, repeat {run.repeat}: {run.failure}"
    kept = "what was run until then is in the table"
    kept += f" and in {save}" if save and save not in unwritten else "" if save else "; --save FILE keeps it"
    yield f"{kept}; --keep-going goes on with the other jobs"
    yield from unwritten.values()


def _check_writable(path: Path | None, option: str) -> None:
    """Before any job has run: afterwards it would be too late. Raises typer.BadParameter."""
    try:
        fault = None if path is None else _unwritable(path)
    except OSError as exc:  # a name that is too long, or a folder whose content this user doesn't see
        fault = f"{path} can't be written: {exc.strerror}; choose another place"
    if fault is not None:
        raise typer.BadParameter(fault, param_hint=option)


def _unwritable(path: Path) -> str | None:
    """Why `path` can't be written, if so."""
    if path.is_dir():
        return f"{path} is a folder; expected a file's path"
    if not path.parent.is_dir():
        return f"{path}: there is no folder {path.parent}; make it first"
    if not os.access(path if path.exists() else path.parent, os.W_OK, effective_ids=True):
        return f"{path} can't be written by this user; choose another place"
    return None


def _check_plot(path: Path | None) -> None:
    """As `_check_writable`."""
    if path is None:
        return
    if path.suffix.lower() not in PLOTS:
        message = f"{path} ends in {path.suffix or 'nothing'!r}; expected {', '.join(PLOTS)}"
        raise typer.BadParameter(message, param_hint="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        message = "needs matplotlib, which isn't installed: pip install 'hdp-train[notebook]'"
        raise typer.BadParameter(message, param_hint="--plot")
    _check_writable(path, "--plot")


def _variant(text: str, ranks: int) -> tuple[str, Any]:
    """Label and what it stands for."""
    label, equals, body = text.partition("=")
    if equals:
        try:
            value = json.loads(body)
        except ValueError as exc:
            example = f'{label}=\'{{"hdp": {{"enabled": true}}}}\''
            message = f"{body!r} isn't JSON ({exc}); expected e.g. {example}"
            raise typer.BadParameter(message, param_hint="VARIANTS") from exc
        return label, value
    if text not in SHORT:
        known = f"expected one of {', '.join(SHORT)}, or LABEL=JSON"
        raise typer.BadParameter(f"{text!r} is unknown{did_you_mean(text, SHORT)}; {known}", param_hint="VARIANTS")
    return text, {SHORT[text]: {"enabled": True, "processes_per_host": ranks}}


def _pairs(given: Sequence[str] | None, option: str) -> list[tuple[str, str]]:
    """NAME=VALUE, each. Raises typer.BadParameter: one isn't, or a name is there twice."""
    pairs: list[tuple[str, str]] = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r}; expected NAME=VALUE", param_hint=option)
        if name in (known for known, _ in pairs):
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        pairs.append((name, value))
    return pairs


def _value(text: str) -> Any:
    """JSON's value, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _uri(where: str) -> str:
    """A path on this machine as a URI."""
    return where if "://" in where else Path(where).absolute().as_uri()
