"""`veen completion`: the completion script of a shell. Names come from the home, without heavy imports.

`veen version`: the version of this installation.
"""

import platform
from typing import Final

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


_VARIABLE: Final = "_VEEN_COMPLETE"
_ALSO: Final = {  # the second name of the program, taught by one more line
    "bash": "complete -o nosort -F _veen_completion veen-cli\n",
    "zsh": "compdef _veen_completion veen-cli\n",
    "fish": "complete --no-files --command veen-cli --wraps veen\n",
}
_INSTALL: Final = {
    "bash": "veen completion bash > ~/.local/share/bash-completion/completions/veen",
    "zsh": "veen completion zsh > ~/.zfunc/_veen",
    "fish": "veen completion fish > ~/.config/fish/completions/veen.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_ALSO)))
@output_options
def completion(output: Output, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    veen completion bash > ~/.local/share/bash-completion/completions/veen
    veen completion zsh > ~/.zfunc/_veen
    veen completion fish > ~/.config/fish/completions/veen.fish
    """
    from click.shell_completion import get_completion_class

    from veen.cli.app import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # noqa: S101 - click knows the three
    complete = completion_class(cli, {}, "veen", _VARIABLE)
    # Not complete.source(): for bash it runs bash to learn its version.
    script = complete.source_template % complete.source_vars() + "\n" + _ALSO[shell]
    output.result({"shell": shell, "script": script}, lambda: click.echo(script, nl=False))
    output.next(_INSTALL[shell])
