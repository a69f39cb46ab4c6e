"""`hdp doctor` and `hdp version`."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what this machine can and can't do, with remedies.

    Exit status 1 where no local job could run.
    """
    from hdp.estimator.cli.doctor import examine
    from hdp.estimator.cli.tables import doctor_table
    from hdp.estimator.cli.text import show

    findings = examine()
    show(doctor_table(findings))
    if any(finding.grade == "no" and finding.needed for finding in findings):
        raise typer.Exit(1)


def version() -> None:
    """Show the version of hdp."""
    from importlib.metadata import version as installed

    typer.echo(installed("hdp-train"))
