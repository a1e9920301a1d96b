"""Real senders: rsyslogd, logger, journalctl over files of systemd-journal-remote."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.client.hubs import run
from tests.products.recorder.sources import Taken, running
from tests.waiting import eventually

from veen.products.recorder.adapters.journald import JournaldSource, record_of_entry
from veen.products.recorder.adapters.syslog import SyslogTcp, SyslogUdp

REMOTE = Path("/lib/systemd/systemd-journal-remote")


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None and not Path(program).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.mark.system
@needs("logger")
def test_logger_sends_rfc_5424_and_3164_over_tcp_and_udp():
    async def story():
        intake = Taken()
        async with (
            running(SyslogTcp("tcp", "127.0.0.1", 0), intake) as tcp,
            running(SyslogUdp("udp", "127.0.0.1", 0), intake) as udp,
        ):
            for options in (
                ["--tcp", "--port", str(tcp.port), "--rfc5424", "--octet-count"],
                ["--tcp", "--port", str(tcp.port), "--rfc5424"],
                ["--tcp", "--port", str(tcp.port), "--rfc3164"],
                ["--udp", "--port", str(udp.port), "--rfc5424"],
            ):
                command = ["logger", "--server", "127.0.0.1", "--tag", "app", *options, " ".join(options[2:])]
                await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
            await eventually(lambda: len(intake.records()) == 4)
        assert {record[0] for record in intake.records()} == {"app"}
        assert all("malformed" not in payload for payload in intake.payloads())

    run(story())


CONF = """
module(load="imfile")
global(workDirectory="{work}")
template(name="f5424" type="string" string="<%PRI%>1 %TIMESTAMP:::date-rfc3339% %HOSTNAME% %APP-NAME% - - - %msg%\\n")
input(type="imfile" File="{log}" Tag="shop" Severity="notice" Facility="local0" reopenOnTruncate="on")
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" TCP_Framing="octet-counted" template="f5424")
"""


@pytest.mark.system
@needs("rsyslogd")
def test_rsyslogd_forwards_a_file_and_nothing_is_lost(tmp_path):
    """The quick start for rsyslog, with a file as its input."""

    async def story():
        intake, log = Taken(), tmp_path / "shop.log"
        log.write_text("".join(f"order {n}\n" for n in range(200)))
        async with running(SyslogTcp("rsyslog", "127.0.0.1", 0), intake) as adapter:
            conf = tmp_path / "rsyslog.conf"
            conf.write_text(CONF.format(work=tmp_path, log=log, port=adapter.port))
            process = await asyncio.create_subprocess_exec(
                "rsyslogd", "-n", "-f", str(conf), "-i", str(tmp_path / "pid"),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                await eventually(lambda: len(intake.records()) >= 200)
            finally:
                process.terminate()
                await process.communicate()
        assert [message.strip() for message in intake.messages()] == [f"order {n}" for n in range(200)]
        assert {record[0] for record in intake.records()} == {"shop"}

    run(story())


def exported(entries):
    """The export format of the journal."""
    blocks = []
    for number, message in enumerate(entries):
        stamp = 1_794_823_200_000_000 + number
        fields = {
            "__REALTIME_TIMESTAMP": stamp, "__MONOTONIC_TIMESTAMP": number + 1,
            "_BOOT_ID": "0" * 31 + "1", "_MACHINE_ID": "0" * 31 + "2", "_HOSTNAME": "gw", "_UID": "1000",
            "SYSLOG_IDENTIFIER": "shop", "_SYSTEMD_UNIT": "shop.service", "MESSAGE": message,
        }  # fmt: skip
        blocks.append("".join(f"{name}={value}\n" for name, value in fields.items()) + "\n")
    return "".join(blocks).encode()


@pytest.mark.system
@needs("journalctl", str(REMOTE))
def test_journal_entries_are_taken_once_and_resumed_at_the_cursor(tmp_path):
    def write(name, entries):
        command = [str(REMOTE), f"--output={tmp_path / name}", "-"]
        subprocess.run(command, input=exported(entries), check=True, capture_output=True, timeout=60)

    def read(intake, name):
        adapter = JournaldSource("journal", options=[f"--file={tmp_path / name}"], follow=False)
        run(adapter.run(intake.sink(adapter)))

    intake = Taken()
    write("a.journal", [f"order {n}" for n in range(5)])
    read(intake, "a.journal")
    read(intake, "a.journal")
    assert [payload["MESSAGE"] for payload in intake.payloads()] == [f"order {n}" for n in range(5)]
    assert {record[:4] for record in intake.records()} == {("1000", "shop", "gw/shop.service", 1_794_823_200)}


def test_an_entry_of_the_journal_keeps_fields_that_are_no_text():
    result = record_of_entry({"MESSAGE": [104, 255], "__CURSOR": "s=1", "_UID": "0"}, now=7, host="h")
    assert result.payload["MESSAGE"] == [104, 255]
    assert (result.subject, result.position, result.key, result.time) == ("0", "s=1", "s=1", 7)
