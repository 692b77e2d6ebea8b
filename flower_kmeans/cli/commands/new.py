"""``flower-kmeans new``: a new Flower app."""

from pathlib import Path
from typing import Annotated

import typer

from flower_kmeans.cli.options import one_sentence


def new(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The new directory; its name is the app's, such as my-app."
        ),
    ],
) -> None:
    """Make a Flower app that runs as it is, in a new DIRECTORY with the app's name.

    It has a client, a server, their options, a README and a test. Put your own records
    into it.
    """
    with one_sentence():
        from flower_kmeans.cli.new import make_app

        make_app(directory)
        typer.echo(
            f"Wrote a Flower app to {directory}. Test it, then run it with five clients:"
        )
        typer.echo(f"  python -m pytest {directory}")
        typer.echo(
            f"  flwr run {directory} local --stream "
            '--federation-config "num-supernodes=5 client-resources-num-cpus=1"'
        )
