"""Why a container ended as it did, in words; and reports that know what the kernel has told the daemon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hdp.contract.outcome import Failure, HostReport
from hdp.estimator.engines.docker.container import Ended
from hdp.estimator.engines.docker.options import DockerOptions

#: An agent's exit code after a SIGTERM: 128 + 15.
STOPPED = 143


def explanation(ended: Ended, options: DockerOptions, image: str, reported: bool) -> str:
    """Why the agent of this container left no report, or was stopped. reported: it left one."""
    if ended.out_of_memory:
        return f"out of memory: {_limit(options)}"
    if ended.exit_code < 0:
        return ended.trouble or (
            "its container was killed (SIGKILL, exit code 137) by somebody outside the job, e.g. `docker kill`; it was "
            "not out of memory"
        )
    if reported:
        return (
            f"its container was told to stop (SIGTERM, exit code {ended.exit_code}) by somebody outside the job, e.g. "
            "`docker stop`; `hdp stop` stops a job, and says so in its record"
        )
    return (
        f"its container ended with exit code {ended.exit_code} and left no report: what the image {image} starts isn't "
        f"hdp's agent{f' ({ended.trouble})' if ended.trouble else ''}; make it FROM an image of `hdp build`"
    )


def with_memory(
    reports: Mapping[str, HostReport], out_of_memory: set[str], options: DockerOptions
) -> dict[str, HostReport]:
    """`reports`, in which a rank that the kernel has killed for memory says so."""

    def told(failure: Failure) -> Failure:
        if failure.host not in out_of_memory or failure.signal != "SIGKILL":
            return failure
        return replace(failure, exception=f"out of memory: {_limit(options)}", collateral=False)

    return {
        host: replace(
            report,
            failures=tuple(told(failure) for failure in report.failures),
            first_cause=told(report.first_cause) if report.first_cause else None,
        )
        for host, report in reports.items()
    }


def without_hearsay(reports: Mapping[str, HostReport], silent: set[str]) -> dict[str, HostReport]:
    """`reports` without what they say of `silent` hosts, which left none: of their end the daemon knows the cause.

    Others only know that they lost contact, and may notice before the daemon does.
    """
    return {
        host: replace(
            report,
            failures=tuple(failure for failure in report.failures if failure.host not in silent),
            first_cause=None if report.first_cause and report.first_cause.host in silent else report.first_cause,
        )
        for host, report in reports.items()
    }


def _limit(options: DockerOptions) -> str:
    if options.memory is None:
        return "the kernel killed a process of this host, for the machine has no more; use fewer hosts, or less data"
    return (
        f"the kernel killed a process of this host, whose processes may use {options.memory} together; raise "
        "engine_options.memory, or use less"
    )
