"""`hdp` itself: its options and help. The commands are in `commands.TABLE`."""

from __future__ import annotations

import typer

from hdp.estimator.cli.commands import EPILOG
from hdp.estimator.cli.group import Commands

app = typer.Typer(
    name="hdp",
    cls=Commands,
    help="Look at training jobs and their data, follow, stop and clean them; compare distributions; see what this "
    "machine can do.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: nothing to load, and the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _hdp() -> None:
    """A group, though its commands are registered nowhere."""
