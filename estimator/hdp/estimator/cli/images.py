"""`hdp build` and `hdp images`: make the images that hosts run, and list those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdp.estimator.cli import completing
from hdp.estimator.spelling import did_you_mean

KindArgument = Annotated[
    str,
    typer.Argument(
        help="torch, tensorflow or mpi.",
        show_default=False,
        autocompletion=completing.of("torch", "tensorflow", "mpi"),
    ),
]


def build(
    kind: KindArgument,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Name of the image; hdp-KIND without one.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Image to build on: with CUDA, your own, ...", show_default=False)
    ] = None,
    framework: Annotated[
        str,
        typer.Option(help="Of mpi: torch or tensorflow.", autocompletion=completing.of("torch", "tensorflow")),
    ] = "torch",
    argument: Annotated[
        list[str] | None, typer.Option("--build-arg", help="NAME=VALUE, as for docker build.", show_default=False)
    ] = None,
    ca_bundle: Annotated[
        Path | None, typer.Option(help="Certificates that the build trusts, for a proxy that rewrites TLS.")
    ] = None,
    source: Annotated[Path, typer.Option(help="A checkout of hdp.")] = Path(),
    push: Annotated[
        str | None, typer.Option(help="registry/repository:tag to push to; Amazon's ECR by your AWS credentials.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the image's name and digest.")] = False,
) -> None:
    """Build an image that hosts run, from a checkout.

    `docker build -f containers/KIND/Dockerfile .` does the same.
    """
    from hdp.estimator.engines.docker import building, daemon, images, pushing

    if kind not in images.KINDS:
        known = ", ".join(images.KINDS)
        message = f"{kind!r} is no kind of image{did_you_mean(kind, images.KINDS)}; expected one of {known}"
        raise typer.BadParameter(message, param_hint="KIND")
    if framework not in ("torch", "tensorflow"):
        raise typer.BadParameter(f"{framework!r}; expected torch or tensorflow", param_hint="--framework")
    usual = images.default_image(framework, "mpi") if kind == "mpi" else images.PREFIX + kind
    name = tag or usual
    what = building.Build(kind, name, source.absolute(), _arguments(kind, base, framework, argument or []), ca_bundle)
    with daemon.connected(daemon.address()) as client:
        digest = building.build(client, what, (lambda _: None) if quiet else typer.echo)
        typer.echo(f"{name}  {digest}")
        if push is not None:
            typer.echo(f"{push}  {pushing.push(client, name, push)}")


def images() -> None:
    """List the images that hosts can run here, and what is in them."""
    from datetime import datetime, timezone

    from hdp.estimator.cli.tables import images_table
    from hdp.estimator.cli.text import show
    from hdp.estimator.engines.docker import daemon
    from hdp.estimator.engines.docker import images as found

    with daemon.connected(daemon.address()) as client:
        rows = found.ours(client)
    if rows:
        show(images_table(rows, datetime.now(timezone.utc)))
    else:
        typer.echo("no images of hdp's yet: hdp build torch")


def _arguments(kind: str, base: str | None, framework: str, given: list[str]) -> dict[str, str]:
    """Build arguments, as the Dockerfile has them."""
    arguments = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint="--build-arg")
        arguments[name] = value
    if kind == "mpi":
        arguments.setdefault("BASE", f"hdp-{framework}")
        arguments.setdefault("FRAMEWORK", framework)
    return {**arguments, **({"BASE": base} if base else {})}
