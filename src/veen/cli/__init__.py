"""The `veen` command. Modules of commands load only when their command runs: help and completion stay fast."""

from veen.cli.app import main

__all__ = ["main"]
