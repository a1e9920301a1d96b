"""`veen bridge copy`, also run by `veen-bridge --source-url … --target-url … --streams …` (001 spec-4 §6)."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import FILE
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.pinning import FIRST_USE_OPTION, first_use, not_pinned, say_trusted
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity.keystore import Keystore
    from veen.core.objects.captoken import CapToken
    from veen.products.federation.mirroring import BridgedStream

_MAX_KEYSTORE_BYTES: Final = 16 << 20
_KEYSTORE: Final = "keystore.enc"


@click.command("copy")
@click.option("--source-url", required=True, help="URL of the hub to copy from.")
@click.option("--target-url", required=True, help="URL of the hub to copy to.")
@click.option("--streams", required=True, help="Streams to copy, by their names in the keystore: core/*,wallet/*.")
@click.option(
    "--source-pin",
    envvar="VEEN_SOURCE_PIN",
    help="Key of the source, ed25519:HEX or root:ed25519:HEX. [VEEN_SOURCE_PIN, VEEN_SOURCE_PIN_FILE]",
)
@click.option(
    "--target-pin",
    envvar="VEEN_TARGET_PIN",
    help="Key of the target, ed25519:HEX or root:ed25519:HEX. [VEEN_TARGET_PIN, VEEN_TARGET_PIN_FILE]",
)
@FIRST_USE_OPTION
@click.option(
    "--keys", type=click.Path(file_okay=False, path_type=Path), envvar="VEEN_BRIDGE_KEYS", default="/secrets",
    show_default=True,
    help="Directory with keystore.enc, and capability tokens for the target as *.cbor; may be a mounted Secret."
    " [VEEN_BRIDGE_KEYS]",
)  # fmt: skip
@click.option("--passphrase-file", type=FILE, help="File with the passphrase of the keystore.")
@click.option(
    "--known-bridge",
    "bridges",
    multiple=True,
    help="Client id of another bridge, 64 hex digits: its copies keep their origin. Repeatable.",
)
@click.option("--every", type=SPAN, default="5s", show_default=True, help="Pause between two passes.")
@click.option("--times", type=click.IntRange(min=1), help="Stop after N passes. Default: run forever.")
@output_options
def copy(
    output: Output,
    streams: str,
    keys: Path,
    passphrase_file: str | None,
    trust_on_first_use: bool,
    **options: Any,
) -> None:
    """Copy streams from one hub to another as a service: each event once, in order, verified first.

    A copy has the same schema and body, under the keys of the stream, with the message at the source as parent. The log
    of the target is the state, so the command may be stopped and started at any time. A hub that does not answer is
    retried; a source that contradicts itself ends the bridge with exit code 1. Prints one line of JSON on standard
    error for each stream with new events.

    \b
    veen bridge copy --source-url http://a:8080 --target-url http://b:8080 --streams 'core/*' \\
        --source-pin ed25519:HEX --target-pin ed25519:HEX --keys /secrets
    """
    import asyncio

    from veen.products.federation.mirroring import select_streams

    keystore = _open_keystore(keys, passphrase_file)
    selectors = [selector.strip() for selector in streams.split(",") if selector.strip()]
    if not selectors:
        raise click.UsageError("--streams names no stream")
    select_streams(keystore.secrets.keyring, selectors)  # reports missing keys before any request
    for side in ("source", "target"):
        options[f"{side}_pin"] = _pin_of(output, side, options, trusts_first_use=trust_on_first_use)
    totals = asyncio.run(_run(keystore, selectors, _tokens(keys), options))
    output.result(totals)


def _pin_of(output: Output, side: str, options: dict[str, Any], *, trusts_first_use: bool) -> str:
    """Return the pin of one hub: of the command line or a variable, of a mounted file, or of the first use."""
    from veen.client.config.settings import read_pin_file

    url, pin = str(options[f"{side}_url"]), options[f"{side}_pin"]
    if pin is not None:
        return str(pin)
    variable = f"VEEN_{side.upper()}_PIN_FILE"
    if path := os.environ.get(variable):
        pin = read_pin_file(path, variable)
        say_trusted(output, url, pin, f"{variable}, {path} says so")
        return pin
    if trusts_first_use:
        return first_use(output, _home().state, url, insecure_http=True)
    fail = not_pinned(url)
    fail.hint = f"give --{side}-pin, {variable} with a mounted file, or --trust-on-first-use"
    raise fail


def _open_keystore(keys: Path, passphrase_file: str | None) -> "Keystore":
    """Open the keystore of a directory, which may be a mounted Secret. A copy is opened: the directory is read-only."""
    from veen.cli.shared.command import read_passphrase
    from veen.client.home import PrivateFs, read_secret
    from veen.client.identity.keystore import Keystore

    path = keys / _KEYSTORE
    try:
        data = read_secret(path, _MAX_KEYSTORE_BYTES)
    except FileNotFoundError as exc:
        raise Fail(
            "E.LOCAL.INPUT",
            f"{path} is not there",
            "a bridge needs its own keys to read and write",
            "`veen keygen --out DIR` makes an identity; give the directory that has its keystore.enc",
        ) from exc
    fs = PrivateFs(_home().state / "keys")
    fs.replace(_KEYSTORE, data, private=True)
    return Keystore.open(fs, None if passphrase_file is None else read_passphrase(Path(passphrase_file)))


def _home() -> "Home":
    """Return the directory for verified state of this bridge; losing it does no harm."""
    from veen.client.home import Home

    return Home.at(Home.default().state / "hub-bridge")


def _tokens(keys: Path) -> "list[CapToken]":
    from veen.cli.shared.authority import read_token

    return [read_token(path) for path in sorted(keys.glob("*.cbor"))]


async def _run(
    keystore: "Keystore", selectors: list[str], tokens: "list[CapToken]", options: dict[str, Any]
) -> dict[str, int]:
    import asyncio

    from veen.client.errors import ClientError, Divergence
    from veen.products.federation.mirroring import HubBridge, select_streams

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    totals = {"passes": 0, "sent": 0, "gaps": 0, "failed": 0}
    streams = select_streams(keystore.secrets.keyring, selectors)
    while True:
        try:
            async with contextlib.AsyncExitStack() as stack:
                source = await _connect(stack, keystore, "source", options)
                target = await _connect(stack, keystore, "target", options)
                bridges = [hex32(key) for key in options["bridges"]]
                bridge = HubBridge(source, target, streams, tokens, now=lambda: int(time.time()), bridges=bridges)
                _log("info", "connect", "both hubs answer", streams=[str(keys.name) for keys in streams])
                while True:
                    work = asyncio.create_task(bridge.run_once())
                    ended = asyncio.create_task(stop.wait())
                    await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
                    ended.cancel()
                    if not work.done():
                        work.cancel()  # the next run finishes messages without a receipt
                        return totals
                    totals["passes"] += 1
                    failed = _count(totals, work.result())
                    if await _is_over(stop, totals, options):
                        return totals
                    if failed or bridge.is_stale:
                        break  # connect again
        except Divergence:
            raise
        except ClientError as exc:
            totals["passes"] += 1
            totals["failed"] += 1
            _log("error", "connect", str(exc), code=exc.code)
            if options["times"] is not None and totals["passes"] >= options["times"]:
                raise
            if await _is_over(stop, totals, options):
                return totals


async def _connect(
    stack: contextlib.AsyncExitStack, keystore: "Keystore", side: str, options: dict[str, Any]
) -> "Client":
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.transport.calls import Retry

    client = await Client.connect(
        options[f"{side}_url"],
        pin=options[f"{side}_pin"],
        identity=keystore.secrets.identity,
        keyring=keystore.secrets.keyring,
        home=Home.at(_home().state / side),
        insecure_http=True,  # inside a cluster; between clusters give https URLs
        retry=Retry(seconds=5),  # then it is said, and tried again with the next pass
    )
    stack.push_async_callback(client.aclose)
    return client


async def _is_over(stop: Any, totals: dict[str, int], options: dict[str, Any]) -> bool:
    """Wait until the next pass is due; return True if there is none."""
    import asyncio

    if options["times"] is not None and totals["passes"] >= options["times"]:
        return True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), options["every"])
    return bool(stop.is_set())


def _count(totals: dict[str, int], outcomes: "list[BridgedStream]") -> bool:
    """Add up a pass and log its results; return True if a stream failed."""
    for outcome in outcomes:
        totals["sent"] += outcome.sent
        totals["gaps"] += outcome.gaps
        if outcome.error is not None:
            totals["failed"] += 1
            _log("error", "copy", str(outcome.error), stream=outcome.stream, code=outcome.error.code)
        elif outcome.sent:
            _log("info", "copy", "copied", stream=outcome.stream, sent=outcome.sent, gaps=outcome.gaps)
    return any(outcome.error is not None for outcome in outcomes)


def _log(level: str, operation: str, message: str, **fields: Any) -> None:
    """Write a log line in the format of all containers of VEEN (spec-4 §10.3)."""
    now = time.time()
    line = {
        "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z",
        "level": level,
        "component": "bridge",
        "role": "bridge",
        **({"tenant_id": os.environ["VEEN_TENANT_ID"]} if os.environ.get("VEEN_TENANT_ID") else {}),
        "operation": operation,
        "message": message,
        **fields,
    }
    print(json.dumps(line), file=sys.stderr, flush=True)  # JSON escapes terminal control characters
