"""The table of commands: where each is, what it does in a line, and the examples that end its help.

A command's module is loaded when it is called, so that the Tab key and `hdp --help` load none. A test parses every
example, and runs those that need no cloud or Docker: ``digits`` is a job, ``train.py`` a script, ``data`` a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command."""

    module: str
    """In `hdp.estimator.cli`; its function has the command's name."""
    summary: str
    """The first line of the function's docstring."""
    examples: tuple[str, ...]


TABLE: Mapping[str, Command] = {
    "jobs": Command(
        "jobs",
        "List jobs, newest first.",
        (
            "hdp jobs",
            "hdp jobs --all",
            "hdp jobs --engine sagemaker",
        ),
    ),
    "describe": Command(
        "jobs",
        "Show one job: what was asked, how it stands, what it left.",
        (
            "hdp describe digits",
            "hdp describe digits --json",
        ),
    ),
    "logs": Command(
        "jobs",
        "Show a job's log.",
        (
            "hdp logs digits --rank 0",
            "hdp logs -f digits",
            "hdp logs -f digits --resume --engine sagemaker",
        ),
    ),
    "stop": Command(
        "jobs",
        "Stop a job; its ranks get time to write a checkpoint.",
        (
            "hdp stop digits",
            "hdp stop digits --wait",
        ),
    ),
    "clean": Command(
        "jobs",
        "Free the disk space that ended jobs hold.",
        (
            "hdp clean --dry-run",
            "hdp clean digits",
            "hdp clean --all --older-than 7d",
        ),
    ),
    "doctor": Command(
        "doctoring",
        "Say what this machine can and can't do, with remedies.",
        ("hdp doctor",),
    ),
    "topology": Command(
        "network",
        "Show hosts and links as measured, of a job or emulated.",
        (
            "hdp topology digits",
            "hdp topology digits --json > cluster.json",
            "hdp topology --hosts 4 --rate 1gbit",
        ),
    ),
    "explain": Command(
        "network",
        "Say how an operation goes, and how long it takes.",
        (
            "hdp explain allreduce 64MiB --hosts 4 --ranks 8 --rate 1gbit",
            "hdp explain allreduce 64MiB --topology cluster.json",
            "hdp explain allreduce 64MiB --wire bfloat16",
        ),
    ),
    "timeline": Command(
        "timeline",
        "Merge a job's timelines into one file for Perfetto.",
        (
            "hdp timeline digits",
            "hdp timeline --folder . --output merged.json",
        ),
    ),
    "report": Command(
        "report",
        "Write one HTML page about a job.",
        (
            "hdp report digits",
            "hdp report digits --output digits.html",
        ),
    ),
    "compare": Command(
        "compare",
        "Run a script under several distributions, and compare.",
        (
            "hdp compare train.py hdp gloo",
            "hdp compare train.py --hosts 2 --ranks 2 --network 1gbit --input training=data hdp horovod gloo",
            "hdp compare train.py --repeats 5 --save out.json --plot out.png hdp gloo",
        ),
    ),
    "lint-input": Command(
        "lint_input",
        "Say what a channel's files mean for a job in a mode.",
        (
            "hdp lint-input data --mode File",
            "hdp lint-input s3://bucket/prefix/ --mode FastFile --hosts 4 --sharded",
        ),
    ),
    "build": Command(
        "images",
        "Build an image that hosts run, from a checkout.",
        (
            "hdp build torch",
            "hdp build mpi --framework tensorflow",
            "hdp build torch --base my-image:1 --tag hdp-torch:mine --push 127.0.0.1:5000/hdp-torch:1",
        ),
    ),
    "images": Command(
        "images",
        "List the images that hosts can run here, and what is in them.",
        ("hdp images",),
    ),
    "serve": Command(
        "serve",
        "Answer SageMaker's SDKs with jobs of this machine.",
        (
            "hdp serve",
            "hdp serve --port 0 --calls-per-second 10",
        ),
    ),
    "version": Command(
        "doctoring",
        "Show the version of hdp.",
        ("hdp version",),
    ),
}

#: What the help of `hdp` ends with.
EPILOG = """\
`hdp COMMAND --help` ends with examples. `hdp --install-completion` has the Tab key complete commands, options, values,
jobs.

Exit status: 0, done; 1, it can't be done, and the message says why and what to do; 2, the command line is wrong; 130,
ended by Ctrl-C; 141, whoever read the output went away.
"""


def function_of(name: str) -> str:
    """What the command `name` is called in Python."""
    return name.replace("-", "_")


def epilog_of(name: str) -> str:
    """The end of a command's help. Lines after the mark are left as they are."""
    examples = TABLE[name].examples
    head = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join(["\b", head, *(f"  {line}" for line in examples)])
