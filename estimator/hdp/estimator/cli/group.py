"""`hdp` as a group of commands: what it says of a command that isn't there, and how an interrupted one ends."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hdp.estimator.cli.commands import TABLE, epilog_of, function_of
from hdp.estimator.spelling import did_you_mean

#: What people know from other tools, and what does it here.
ELSEWHERE: Mapping[str, str] = {
    "list": "jobs", "ls": "jobs", "ps": "jobs", "status": "describe", "show": "describe", "info": "describe",
    "inspect": "describe", "log": "logs", "tail": "logs", "follow": "logs", "cancel": "stop", "kill": "stop",
    "delete": "clean", "rm": "clean", "remove": "clean", "prune": "clean", "check": "doctor", "trace": "timeline",
    "lint": "lint-input",
}  # fmt: skip


class ReaderLeft(Exception):
    """Nobody reads standard output any more."""


class Interrupted(Exception):
    """Ctrl-C."""


class Commands(TyperGroup):
    """The commands of `hdp`, each loaded and built when it is called: building one takes Typer up to 20 ms."""

    _only_listed = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # click's
        """All names, in the order in which a person would want them."""
        return list(TABLE)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # click's
        """The command, or what a list shows of it; None: there is none of that name."""
        if cmd_name not in TABLE:
            return None
        if self._only_listed:
            return TyperCommand(cmd_name, help=TABLE[cmd_name].summary)
        return built(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What may follow."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._only_listed = True
        try:
            yield
        finally:
            self._only_listed = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begin with. One that isn't there is an error that names the one that is meant."""
        name = args[0]
        if name not in TABLE and not name.startswith("-") and not ctx.resilient_parsing:
            meant = f"; here it is `hdp {ELSEWHERE[name]}`" if name in ELSEWHERE else did_you_mean(name, TABLE)
            ctx.fail(f"no command is called {name!r}{meant} (there are {', '.join(TABLE)})")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises ReaderLeft and Interrupted, which `main` makes exit codes of."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as exc:
            raise ReaderLeft from exc
        except KeyboardInterrupt as exc:
            raise Interrupted from exc


def built(name: str) -> Any:
    """The command `name`, with its options."""
    module = importlib.import_module(f"hdp.estimator.cli.{TABLE[name].module}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, epilog=epilog_of(name))(getattr(module, function_of(name)))
    return get_command(alone)
