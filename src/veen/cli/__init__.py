"""The `veen` command: commands, options, output and results.

Commands print one value that every form shows: terminal, plain text, JSON. Names, options and fields of JSON are
stable. Modules of commands load only when their command runs, so help and completion stay fast.

It imports every room below and no product, but for their names in the table of commands. Start with `app`: the table
`COMMANDS`, exit codes, and no traceback. `shared.command` is what commands share that talk to a hub, `shared.output`
how results are shown. Each folder is a noun or a group of them.
"""

from veen.cli.app import main

__all__ = ["main"]
