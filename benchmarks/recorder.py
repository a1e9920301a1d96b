"""How fast an agent records, and what it costs: `python -m benchmarks.recorder [--events N]`.

The same lines go through `veen recorder agent` to a hub, each with a verified receipt, and beside it through programs
that only copy them: rsyslogd from file to file, and Vector or fluent-bit, if they are installed. One JSON object per
program: events per second from start to the last one, and CPU seconds per thousand events (of the agent alone; the
hub's apart). A program that is not installed is a row that says so. The copiers give no receipt, and lose what they
hold when they are killed: the comparison is of cost, not of what is bought. The table goes to docs/benchmarks.md.
`--baseline DIR` compares the agent and the hub with those of another checkout that has a virtual environment, and only
prints.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import baseline, report
from tests.cli.hubprocess import running

VEEN = (sys.executable, "-m", "veen")
STREAM = "record/app/web"
_LIMIT_SECONDS = 3_600.0

Measure = Callable[[Path, int, Path], dict[str, Any]]


def write_log(path: Path, events: int) -> None:
    with path.open("w") as file:
        for number in range(events):
            line = {"user": f"u{number % 97}", "event": "order.paid", "n": number, "text": "x" * 120}
            file.write(json.dumps(line) + "\n")


def cpu_of(pid: int) -> float:
    """User and system seconds of a running process and the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def row(program: str, events: int, seconds: float, cpu: float, **more: Any) -> dict[str, Any]:
    return {
        "program": program,
        "events": events,
        "seconds": round(seconds, 2),
        "events_per_second": round(events / seconds),
        "cpu_seconds_per_1000": round(1000 * cpu / events, 4),
        **more,
    }


def agent(log: Path, events: int, work: Path) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    env["VEEN_HOME"] = str(work / "home")
    with running(work / "hub") as hub:
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        setup = [*VEEN, "recorder", "init", "--producer", f"web={STREAM}", "--insecure-plain-keystore", *at, "--quiet"]
        subprocess.run(setup, check=True, env=env, stdout=subprocess.DEVNULL)
        hub_cpu, began, before = cpu_of(hub.process.pid), time.perf_counter(), os.times()
        command = [*VEEN, "recorder", "agent", "--identity", "web", "--source", f"file:{log}", "--stream", STREAM]
        done = subprocess.run([*command, "--once", "--json", *at], check=True, env=env, stdout=subprocess.PIPE)
        seconds, after = time.perf_counter() - began, os.times()
        hub_cpu = cpu_of(hub.process.pid) - hub_cpu
    counts = json.loads(done.stdout)
    if counts["waiting"] or counts["sent"] < events:
        raise SystemExit(f"the agent did not record everything: {counts}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return row("veen recorder agent", events, seconds, cpu, hub_cpu_seconds_per_1000=round(1000 * hub_cpu / events, 4))


def copied(
    program: str, command: list[str], log: Path, target: Path, events: int, *, append: Callable[[], None]
) -> dict[str, Any]:
    """A program that follows `log` and writes to `target`: timed from the first line that it can see to the last."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        began = time.perf_counter()
        append()
        while lines_of(target) < events:
            if process.poll() is not None:
                return {"program": program, "error": f"ended with status {process.returncode}"}
            if time.perf_counter() - began > _LIMIT_SECONDS:
                return {"program": program, "error": f"{lines_of(target)} of {events} lines after an hour"}
            time.sleep(0.02)
        return row(program, events, time.perf_counter() - began, cpu_of(process.pid))
    finally:
        process.terminate()
        process.wait()


def lines_of(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def rsyslog(log: Path, events: int, work: Path, *, sync: bool = False) -> dict[str, Any]:
    """From file to file; with `sync`, rsyslogd syncs the target after each of its batches."""
    name = "rsyslog-sync" if sync else "rsyslog"
    target, conf, source = work / f"{name}.out", work / f"{name}.conf", work / f"{name}.in"
    source.touch()
    conf.write_text(
        f'module(load="imfile")\nglobal(workDirectory="{work}")\n'
        'template(name="line" type="string" string="%msg%\\n")\n'
        f'input(type="imfile" File="{source}" Tag="t")\n'
        f'action(type="omfile" file="{target}" template="line" asyncWriting="off" '
        f'sync="{"on" if sync else "off"}")\n'
    )
    command = ["rsyslogd", "-n", "-f", str(conf), "-i", str(work / f"{name}.pid")]
    program = "rsyslogd to file, synced" if sync else "rsyslogd to file"
    return copied(program, command, log, target, events, append=lambda: _feed(log, source))


def vector(log: Path, events: int, work: Path) -> dict[str, Any]:
    target, conf, source = work / "vector.out", work / "vector.json", work / "vector.in"
    source.touch()
    conf.write_text(
        json.dumps(
            {
                "data_dir": str(work),
                "sources": {"in": {"type": "file", "include": [str(source)]}},
                "sinks": {
                    "out": {"type": "file", "inputs": ["in"], "path": str(target), "encoding": {"codec": "text"}}
                },
            }
        )
    )
    command = ["vector", "--config", str(conf)]
    return copied("vector to file", command, log, target, events, append=lambda: _feed(log, source))


def fluent_bit(log: Path, events: int, work: Path) -> dict[str, Any]:
    target, source = work / "fluent.out", work / "fluent.in"
    source.touch()
    command = [
        "fluent-bit", "-i", "tail", "-p", f"path={source}", "-p", "read_from_head=on",
        "-o", "file", "-p", f"path={work}", "-p", f"file={target.name}", "-f", "1",
    ]  # fmt: skip
    return copied("fluent-bit to file", command, log, target, events, append=lambda: _feed(log, source))


def _feed(log: Path, source: Path) -> None:
    with log.open("rb") as reader, source.open("ab") as writer:
        shutil.copyfileobj(reader, writer)


def rates(events: int, installation: baseline.Installation) -> dict[str, float]:
    """Return events for a second of time, of the agent's CPU and of the hub's CPU."""
    figures = baseline.run_module(installation, "benchmarks.recorder", "--events", str(events), "--inside")
    return {
        "events a second": figures["events"] / figures["seconds"],
        "events for a second of the agent's CPU": 1_000 / figures["cpu_seconds_per_1000"],
        "events for a second of the hub's CPU": 1_000 / figures["hub_cpu_seconds_per_1000"],
    }


def _inside(events: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "app.log"
        write_log(log, events)
        return agent(log, events, Path(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    baseline.add_options(parser)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(_inside(options.events)))
        return
    if options.baseline is not None:
        print(baseline.comparison(partial(rates, options.events), options.baseline, options.baseline_rounds))
        return
    peers: list[tuple[str, Measure]] = [
        ("rsyslogd", rsyslog),
        ("rsyslogd", partial(rsyslog, sync=True)),
        ("vector", vector),
        ("fluent-bit", fluent_bit),
    ]
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        log = work / "app.log"
        write_log(log, options.events)
        rows = [agent(log, options.events, work)]
        print(json.dumps(rows[0]), flush=True)
        for program, measure in peers:
            missing = {"program": program, "error": "not installed"}
            rows.append(missing if shutil.which(program) is None else measure(log, options.events, work))
            print(json.dumps(rows[-1]), flush=True)
    report.write_section("recorder", table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "## Recorder",
        "",
        report.machine(),
        "",
        f"{rows[0]['events']:,} lines of a file, 170 bytes each. The agent seals, signs and sends them to a hub on the "
        "same two cores and ends when each has a verified receipt; the others copy the lines to a second file and "
        "give no receipt.",
        "",
        "| program | events/s | CPU s per 1,000 events | the hub's CPU s per 1,000 |",
        "|---|---:|---:|---:|",
    ]
    for result in rows:
        if "error" in result:
            lines.append(f"| {result['program']} | {result['error']} | – | – |")
            continue
        hub = result.get("hub_cpu_seconds_per_1000")
        lines.append(
            f"| {result['program']} | {result['events_per_second']:,} | {result['cpu_seconds_per_1000']:.3f} "
            f"| {'–' if hub is None else f'{hub:.3f}'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
