"""`veen doctor`: checks of this machine."""

import click

from veen.cli.shared import options
from veen.cli.shared.command import CliSession, home_options
from veen.cli.shared.output import Exit, Output


@click.command()
@click.option("--offline", is_flag=True, help=options.OFFLINE)
@click.option("--prepare-spark", is_flag=True, help="Start Spark once first, so that later starts are faster.")
@home_options
def doctor(output: Output, session: CliSession, offline: bool, prepare_spark: bool) -> None:
    """Check permissions, keystores, configuration, contexts, pins and clocks, and print how to fix each fault.

    Exit code 1: another key than the pinned one answers; 5: something on this machine; 3: a hub cannot be reached.

    --prepare-spark puts a class-data archive of 160 MB into your cache directory and compiles Python's bytecode.
    """
    import os
    from pathlib import Path

    from veen.cli.setup import diagnosis
    from veen.cli.setup.diagnosis import Severity
    from veen.client.config.file import ConfigFile
    from veen.client.config.projects import place_of, read_both
    from veen.client.errors import SettingsError

    if prepare_spark:
        from veen.lake.spark.startup import PREPARING, prepare

        with output.progress(PREPARING):
            prepare()
    home, here = session.user_home, Path.cwd()
    findings = [*diagnosis.check_files(home, here, os.environ), *diagnosis.check_identities(home)]
    try:
        project, user = read_both(here, home.config_file)
    except SettingsError:  # told by check_files
        project, user = ConfigFile(place_of(here), project=True), ConfigFile(home.config_file)
    with output.progress("asking the hubs"):
        findings += diagnosis.check_contexts(user, project, online=not offline)
    findings += [*diagnosis.check_native(), *diagnosis.check_spark()]

    def human() -> None:
        styles = {Severity.OK: "good", Severity.WARN: "warn", Severity.BAD: "bad"}
        for finding in findings:
            output.line(f"{finding.level.value:<4}  {finding.about}: {finding.what}", styles[finding.level])
            if finding.fix:
                output.line(f"      fix: {finding.fix}")

    codes = {finding.exit_code for finding in findings if finding.level is Severity.BAD}
    data = {
        "ok": not codes,
        "findings": [
            {"level": finding.level.value, "about": finding.about, "what": finding.what, "fix": finding.fix or None}
            for finding in findings
        ],
    }
    output.result(data, human)
    for code in (Exit.BAD_EVIDENCE, Exit.LOCAL, Exit.REFUSED, Exit.NETWORK):  # the worst one counts
        if code in codes:
            raise click.exceptions.Exit(code)
