"""``hdp lint-input``: what is to be said of a channel's data before a job is paid for.

Listing is the runtime's, which the client doesn't import: it runs as a program of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hdp.contract.errors import EngineError, SpecError
from hdp.estimator.cli import completing

MODES = ("File", "FastFile", "Pipe")
TYPES = ("S3Prefix", "ManifestFile", "AugmentedManifestFile")

UriArgument = Annotated[
    str, typer.Argument(help="A folder, file:///folder, or s3://bucket/prefix/.", show_default=False)
]
ModeOption = Annotated[
    str, typer.Option("--mode", "-m", help="File, FastFile or Pipe.", autocompletion=completing.of(*MODES))
]
TypeOption = Annotated[
    str,
    typer.Option(
        "--type", help="S3Prefix, ManifestFile or AugmentedManifestFile.", autocompletion=completing.of(*TYPES)
    ),
]
NamesOption = Annotated[
    list[str] | None, typer.Option("--attribute", help="Of an augmented manifest; may be repeated.", show_default=False)
]
RecordOption = Annotated[bool, typer.Option("--record-io", help="With record_wrapping='RecordIO'.")]
HostsOption = Annotated[int, typer.Option(min=1, help="Hosts that get the channel.")]
ShardedOption = Annotated[bool, typer.Option("--sharded", help="By ShardedByS3Key: each host gets its share.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]


def lint_input(
    uri: UriArgument,
    mode: ModeOption = "FastFile",
    hosts: HostsOption = 1,
    sharded: ShardedOption = False,
    data_type: TypeOption = "S3Prefix",
    attribute: NamesOption = None,
    record_io: RecordOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a channel's files mean for a job in a mode.

    How many there are, how large they are, and what is to be said before a job is paid for.

    Lists the source, as a job's hosts would; exit code 1 where no job could use it.
    """
    from hdp.estimator.inputs import TrainingInput

    uri = uri if "://" in uri else Path(uri).absolute().as_uri()
    channel = TrainingInput(
        uri,
        "ShardedByS3Key" if sharded else "FullyReplicated",
        input_mode=mode,
        s3_data_type=data_type,
        attribute_names=attribute,
        record_wrapping="RecordIO" if record_io else None,
    )
    answer = ask(channel.channel("data"), hosts)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    typer.echo(f"{uri}: {answer['summary']}")
    for line in answer["lines"] or ["nothing to say against it"]:
        typer.echo(f"- {line}")


def ask(channel: dict[str, Any], hosts: int) -> dict[str, Any]:
    """What the runtime finds. Raises SpecError for a source that no job could use, EngineError where it can't look."""
    question = json.dumps({"channel": channel, "hosts": hosts})
    command = [sys.executable, "-m", "hdp.runtime.channels.lint", question]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as exc:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EngineError(f"the runtime can't look at the channel: {said}; is hdp-train whole? `hdp doctor`") from exc
    if "error" in answer:
        raise SpecError([answer["error"]], "this input")
    return answer
