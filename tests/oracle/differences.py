"""Where our requests differ from v2's on purpose: a row each, with its reason. README has the same table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Absent = Literal["absent"]


@dataclass(frozen=True)
class Difference:
    """One deliberate difference."""

    paths: str
    """Regular expression for the whole path of a value in the request."""
    v2: str
    """Regular expression for what v2 sends there; "absent" for nothing."""
    ours: str
    """The same for us."""
    reason: str

    def explains(self, path: str, v2: Any, ours: Any) -> bool:
        """Whether this is the difference between `v2` and `ours` at `path`."""
        return all(
            re.fullmatch(pattern, str(value))
            for pattern, value in ((self.paths, path), (self.v2, v2), (self.ours, ours))
        )


_ANY = r"(?!absent$).*"

DIFFERENCES = {
    "debugger unasked": Difference(
        r"DebugHookConfig\..*",
        _ANY,
        "absent",
        "v2 turns Debugger's hook on by itself; we send it where debugger_hook_config or rules ask for it",
    ),
    "profiler unasked": Difference(
        r"ProfilerConfig\..*",
        _ANY,
        "absent",
        "v2 turns the profiler on by itself; we send it where profiler_config, rules or disable_profiler say so",
    ),
    "code archive": Difference(
        r"HyperParameters\.sagemaker_submit_directory",
        r'"s3://[^/]+/(jobs/)?oracle-job/source/sourcedir\.tar\.gz"',
        r'"s3://[^/]+/(.+/)?[0-9a-f]{64}/sourcedir\.tar\.gz"',
        "the key is the content's digest, not the job's name: the same code is uploaded once",
    ),
    "code channel": Difference(
        r"InputDataConfig\[1\]\.InputMode",
        "absent",
        "File",
        "the channel `code` says that it's File, so that a job whose input_mode is Pipe or FastFile finds its code",
    ),
    "default bucket": Difference(
        r"OutputDataConfig\.S3OutputPath",
        r"s3://sagemaker-us-west-2-123456789012/",
        r"s3://default-bucket/",
        "plan() is offline, so a stand-in is in the account's place; fit() sends v2's",
    ),
    "default bucket of model_dir": Difference(
        r"HyperParameters\.model_dir",
        r'"s3://sagemaker-us-west-2-123456789012/oracle-job/model"',
        r'"s3://default-bucket/oracle-job/model"',
        "the same, in TensorFlow's model_dir",
    ),
    "role by name": Difference(
        r"RoleArn",
        r"arn:aws:iam::123456789012:role/Trainer",
        r"arn:aws:iam::000000000000:role/Trainer",
        "plan() is offline; fit() has IAM resolve the name, as v2 does",
    ),
    "strategy that is off": Difference(
        r"HyperParameters\.sagemaker_mpi_(enabled|custom_mpi_options)",
        r'false|""',
        "absent",
        "`enabled: False` is the same as leaving the strategy out",
    ),
    "ours alone": Difference(
        r"HyperParameters\.sagemaker_hdp_.*",
        "absent",
        _ANY,
        "v2 drops a strategy that it doesn't know without a word, and every host trains alone",
    ),
    "hdp comes along": Difference(
        r"(AlgorithmSpecification\.Container|InputDataConfig\[\d\]\.|HyperParameters\.sagemaker_submit_directory).*",
        r'absent|"s3://bucket/code/sourcedir\.tar\.gz"',
        _ANY,
        "hdp's own strategies bring runtime, code and secret as channels, and the program that starts them",
    ),
    "text beyond ASCII": Difference(
        r"HyperParameters\.name",
        r'"na\\u00efve"',
        '"naïve"',
        "v2 writes \\uXXXX, of which 2,500 characters hold a sixth; any JSON reader reads both",
    ),
    "instance type of groups": Difference(
        r"HyperParameters\.sagemaker_instance_type",
        "null",
        r'"ml\.p4d\.24xlarge"',
        "v2 sends null for a job of several groups; we send the type of the group with the ranks",
    ),
    "groups of torch_distributed": Difference(
        r"HyperParameters\.sagemaker_(distribution_instance_groups|instance_type)",
        "absent",
        r'\["gpus"\]|"ml\.p4d\.24xlarge"',
        "v2 drops the groups beside torch_distributed, so that each group starts a world of its own",
    ),
}
