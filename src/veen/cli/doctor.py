"""`veen doctor`."""

import click

from veen.cli.clictx import Session, home_options
from veen.cli.output import Exit, Output, output_options

__all__ = ["doctor"]


@click.command()
@click.option("--offline", is_flag=True, help="Do not ask any hub.")
@output_options
@home_options
def doctor(output: Output, session: Session, offline: bool) -> None:
    """Check permissions, keystores, configuration, contexts, pins and clocks; say how to mend what is wrong.

    Exit code 1: another key than the pinned one answers; 5: something on this machine; 3: a hub cannot be reached.
    """
    import os
    from pathlib import Path

    from veen.cli import checkup
    from veen.cli.checkup import Level
    from veen.cli.configfile import ConfigFile, read
    from veen.cli.output import Fail
    from veen.cli.settings import PROJECT_FILE

    home, here = session.user_home, Path.cwd()
    findings = [*checkup.check_files(home, here, os.environ), *checkup.check_identities(home)]
    try:
        files = read(home.config_file), read(here / PROJECT_FILE, project=True)
    except Fail:  # told by check_files
        files = ConfigFile(home.config_file), ConfigFile(here / PROJECT_FILE, project=True)
    with output.progress("asking the hubs"):
        findings += checkup.check_contexts(*files, online=not offline)
    findings += checkup.check_spark()

    def human() -> None:
        styles = {Level.OK: "good", Level.WARN: "warn", Level.BAD: "bad"}
        for one in findings:
            output.line(f"{one.level.value:<4}  {one.about}: {one.what}", styles[one.level])
            if one.fix:
                output.line(f"      fix: {one.fix}")

    codes = {one.exit_code for one in findings if one.level is Level.BAD}
    data = {
        "ok": not codes,
        "findings": [
            {"level": one.level.value, "about": one.about, "what": one.what, "fix": one.fix or None} for one in findings
        ],
    }
    output.result(data, human)
    for code in (Exit.BAD_EVIDENCE, Exit.LOCAL, Exit.REFUSED, Exit.NETWORK):  # the worst one counts
        if code in codes:
            raise click.exceptions.Exit(code)
