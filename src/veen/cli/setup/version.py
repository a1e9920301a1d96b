"""`veen version`."""

import platform

import click

from veen import __version__, native
from veen.cli.shared.output import Output, output_options


@click.command()
@output_options
def version(output: Output) -> None:
    """Print the version of VEEN, of the protocol and of Python, and whether the native module is in use."""
    data = {
        "veen": __version__,
        "protocol": "v0.0.1",
        "python": platform.python_version(),
        "signatures": native.LOADED.what,
    }
    output.result(data)
