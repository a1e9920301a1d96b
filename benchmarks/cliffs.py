"""What a message costs a hub when something about it is unusual: its size, its label, its client, its head, TLS.

    python -m benchmarks.cliffs                  measure, and write the section of docs/benchmarks.md
    python -m benchmarks.cliffs --quick          small numbers, for a first look; nothing is written
    python -m benchmarks.cliffs --only label     cases whose name contains this; nothing is written

Each case is a hub process of its own under the load of 64 connections, one message a request. What counts is the CPU
time of the hub for a message, beside that of the usual message in the same round: it hardly depends on what else the
machine does. The ordering thread's part is told apart, as everybody waits for it.
"""

import argparse
import json
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from benchmarks import report
from benchmarks.hub import over_http

CONNECTIONS: Final = 64
ROUNDS: Final = 3
REFERENCE: Final = "690 bytes, 8 labels, 64 clients"
Case = Callable[[], dict[str, Any]]


def cases(messages: int, most: int) -> dict[str, Case]:
    """Cases by name: `messages` in most of them, `most` labels and clients where they are many."""
    each = max(1, messages // CONNECTIONS)
    many = max(1, most // CONNECTIONS)
    large = max(1, each // 16)
    table: dict[str, Case] = {
        REFERENCE: lambda: over_http(1, CONNECTIONS, each),
        "ciphertext of 256 bytes": lambda: over_http(1, CONNECTIONS, each, size=256),
        "ciphertext of 4 KiB": lambda: over_http(1, CONNECTIONS, each, size=4 << 10),
        "ciphertext of 64 KiB": lambda: over_http(1, CONNECTIONS, large, size=64 << 10),
        "ciphertext of 1 MB": lambda: over_http(1, CONNECTIONS, max(1, large // 8), size=1_000_000),
        "a head that changes with each request": lambda: over_http(1, CONNECTIONS, each, changing=True),
        "TLS": lambda: over_http(1, CONNECTIONS, each, tls=True),
        "each message of another client, 1 label": lambda: over_http(1, CONNECTIONS, each, fresh=True, labels=1),
        "each message of another client, 8 labels": lambda: over_http(1, CONNECTIONS, each, fresh=True),
        "each message of another client, 1,000 labels": lambda: over_http(
            1, CONNECTIONS, each, fresh=True, labels=1_000
        ),
        f"{many * CONNECTIONS:,} clients, 8 labels": lambda: over_http(1, CONNECTIONS, many, fresh=True),
        f"{many * CONNECTIONS:,} clients, each a label of its own": lambda: over_http(
            1, CONNECTIONS, many, fresh=True, labels=many * CONNECTIONS
        ),
    }
    return table


def table(rounds: list[dict[str, dict[str, Any]]]) -> str:
    lines = [
        "## What is unusual about a message",
        "",
        report.machine(),
        "",
        f"{CONNECTIONS} connections, one message a request; medians of {len(rounds)} rounds. CPU time of all threads "
        "of the hub for a message, and of the thread that orders; in parentheses the multiple of the first row in the "
        "same round. Stopping is from the signal to the end of the process, the journal emptied into the chunks.",
        "",
        "| case | messages | hub, CPU µs | ordering thread, CPU µs | messages/s | p99 ms | stopping, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]

    def middle(name: str, key: str) -> float:
        return median(float(measured[name][key]) for measured in rounds)

    def times(name: str, key: str) -> str:
        if REFERENCE not in rounds[0]:
            return ""
        return f" ({median(measured[name][key] / measured[REFERENCE][key] for measured in rounds):.2f})"

    for name in rounds[0]:
        cpu = (f"{middle(name, key):.0f}{times(name, key)}" for key in ("hub_cpu_us", "ordering_cpu_us"))
        rest = f"{middle(name, 'per_second'):.0f} | {middle(name, 'p99_ms'):.1f} | {middle(name, 'stop_seconds'):.1f}"
        lines.append(f"| {name} | {middle(name, 'receipts'):,.0f} | {' | '.join(cpu)} | {rest} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=12_800, help="of most cases")
    parser.add_argument("--most", type=int, default=100_000, help="labels and clients where they are many")
    parser.add_argument("--only", default="", help="cases whose name contains this; nothing is written")
    parser.add_argument("--quick", action="store_true", help="small numbers; nothing is written")
    options = parser.parse_args()
    chosen = cases(2_560, 2_560) if options.quick else cases(options.messages, options.most)
    rounds = []
    for number in range(1 if options.quick else options.rounds):
        measured = {name: case() for name, case in chosen.items() if options.only in name or name == REFERENCE}
        for name, result in measured.items():
            if result["refused"]:
                raise RuntimeError(f"messages were refused: {name}: {result}")
            print(number + 1, name, json.dumps(result), flush=True)
        rounds.append(measured)
    text = table(rounds)
    if options.quick or options.only:
        print(text)
    else:
        report.write_section("cliffs", text)


if __name__ == "__main__":
    main()
