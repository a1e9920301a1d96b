"""`veen selftest` and `veen-selftest`: test the promises of a deployment end to end (001 spec-4 §8)."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import FILE, CliSession, client_options, several
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.pinning import FIRST_USE_OPTION

if TYPE_CHECKING:
    from veen.core.crypto.ed25519 import SigningKey
    from veen.products.selftest.suite import HubAt

_KEY_BYTES: Final = 32
_MAX_KEY_FILE: Final = 256

selftest = LazyGroup("selftest", help="Test a hub and its clients end to end. Exit code 7 if a check fails.")


_PROBE_OPTIONS: Final = several(
    click.option(
        "--issuer-key",
        type=FILE,
        envvar="VEEN_ISSUER_KEY_FILE",
        help="File with the private key, in hex, of an issuer that the hub trusts. [VEEN_ISSUER_KEY_FILE]",
    ),
    click.option(
        "--stream",
        type=STREAM,
        envvar="VEEN_SELFTEST_STREAM",
        help="Stream for which the hub trusts the issuer. Default: a new one with a random name."
        " [VEEN_SELFTEST_STREAM]",
    ),
    FIRST_USE_OPTION,
)


def _run(output: Output, name: str, hub: "HubAt | None", peer: "HubAt | None" = None) -> None:
    """Run the suite against these hubs, or against hubs started for it."""
    import asyncio

    from veen.products.selftest import suite_named
    from veen.products.selftest.suite import run

    suite = suite_named(name)
    failed: list[str] = []
    not_checked = 0
    columns = ("result", "seconds", "check", "detail")

    async def work() -> None:
        nonlocal not_checked
        with output.records("checks", columns, widths=(11, 7, 76)) as records:
            async for outcome in run(suite, hub=hub, peer=peer):
                result = "not checked" if outcome.ok is None else "ok" if outcome.ok else "FAILED"
                row: dict[str, Any] = {
                    "suite": outcome.suite,
                    "check": outcome.check,
                    "ok": outcome.ok,
                    "result": result.lower(),
                    "seconds": round(outcome.seconds, 3),
                    "detail": outcome.detail,
                }
                records.add(row, [result, row["seconds"], outcome.check, outcome.detail or ""])
                if outcome.ok is None:
                    not_checked += 1
                elif not outcome.ok:
                    failed.append(outcome.check)
            records.summary(
                {
                    "suite": suite.name,
                    "hub": None if hub is None else hub.url,
                    "failed": len(failed),
                    "not_checked": not_checked,
                }
            )

    asyncio.run(work())
    if failed:
        raise Fail(
            "E.SELFTEST",
            f"{len(failed)} of {len(suite.checks)} checks failed",
            "; ".join(failed),
            "see the table above; `veen doctor` checks this machine",
        )
    passed = len(suite.checks) - not_checked
    rest = f", {not_checked} were not made" if not_checked else ""
    output.note(f"{passed} of {len(suite.checks)} checks of {suite.name} passed{rest}")


def _select_hub(session: CliSession, **access: Any) -> "HubAt | None":
    """Return the hub of --hub or --context; None without one."""
    from veen.products.selftest.suite import HubAt

    settings = session.settings
    if settings.hub.value is None:
        return None
    return HubAt(
        url=session.hub_url,
        pin=session.pin,
        ca_file=settings.path("ca_file"),
        token_file=settings.path("token_file"),
        insecure_http=bool(settings.insecure_http.value),
        wait_seconds=settings.wait.value,
        **access,
    )


def _issuer_key(path: str | None) -> "SigningKey | None":
    from veen.client.home import read_secret
    from veen.core.crypto.ed25519 import SigningKey

    if path is None:
        return None
    data = read_secret(Path(path), _MAX_KEY_FILE)
    try:
        seed = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        seed = b""
    if len(seed) != _KEY_BYTES:
        raise Fail(
            "E.LOCAL.INPUT",
            f"{path}: not the private key of an issuer",
            f"expected {2 * _KEY_BYTES} hex digits",
            "`veen kube tenant new` and `veen kube init` write such a file: keys/NAMESPACE/selftest/issuer.key",
        )
    return SigningKey(seed)


@selftest.verb("core", "Test a hub: receipts, proofs, refusals, reading.")
@_PROBE_OPTIONS
@client_options
def core(
    output: Output, session: CliSession, issuer_key: str | None, stream: str | None, trust_on_first_use: bool
) -> None:
    """Check a running hub: identity, receipts, refusals, proofs, checkpoints, reading, attachments.

    Writes about twenty small messages to one stream, under keys of its own. A hub that asks for capabilities needs
    --issuer-key. Without --hub and --context a hub is started for it, as a process, and removed again.

    \b
    veen selftest core --hub http://127.0.0.1:8080 --pin ed25519:HEX
    veen selftest core --hub http://veen-hub:8080 --pin ed25519:HEX --issuer-key issuer.key --stream veen/selftest/7
    """
    session.trusts_first_use = trust_on_first_use
    hub = _select_hub(session, issuer=_issuer_key(issuer_key), stream=stream)
    _run(output, "core", hub)


@selftest.verb("authority", "Test the right to write: capabilities, limits, revocation.")
@_PROBE_OPTIONS
@click.option("--admin-token-file", type=FILE, help="File with a bearer token of an administrator of the hub.")
@client_options
def authority(
    output: Output,
    session: CliSession,
    issuer_key: str | None,
    stream: str | None,
    admin_token_file: str | None,
    trust_on_first_use: bool,
) -> None:
    """Check what a running hub enforces of capabilities: issuer, subject, streams, expiry, rate, revocation.

    Issues capabilities for keys of its own with --issuer-key, which the hub must trust. Revocation and the records of
    the policy are checked with --admin-token-file only, and reported as not checked without.

    \b
    veen selftest authority --hub http://veen-authority:8080 --pin ed25519:HEX --issuer-key issuer.key
    """
    session.trusts_first_use = trust_on_first_use
    admin = None if admin_token_file is None else Path(admin_token_file)
    hub = _select_hub(session, issuer=_issuer_key(issuer_key), stream=stream, admin_token_file=admin)
    if hub is None:
        _ = session.hub_url  # raises the error of a missing hub: a hub of ours would prove nothing
    _run(output, "authority", hub)


@selftest.verb("overlays", "Every overlay of everyday use, between several identities.")
@client_options
def overlays(output: Output, session: CliSession) -> None:
    """Drive every overlay of everyday use end to end: seal, order, prove, read, fold, compare.

    Starts hubs of its own, as processes, and removes them again. With --hub or --context the hub named there is used,
    under streams that nobody else has; it must admit clients without capabilities. What needs a second hub, or one of
    a certain configuration, still starts its own.

    \b
    veen selftest overlays
    veen selftest overlays --hub http://127.0.0.1:8080 --pin ed25519:HEX
    """
    _run(output, "overlays", _select_hub(session))


@selftest.verb("federated", "Two hubs that hold each other's logs: mirrors, copies, replicas.")
@click.option("--peer-hub", help="URL of the second hub.")
@click.option("--peer-pin", help="Key of the second hub, ed25519:HEX.")
@click.option("--peer-token-file", type=FILE, help="File with the bearer token for the second hub.")
@click.option("--peer-ca-file", type=FILE, help="CA certificates for the second hub, instead of the system's (PEM).")
@client_options
def run_federated(
    output: Output,
    session: CliSession,
    peer_hub: str | None,
    peer_pin: str | None,
    peer_token_file: str | None,
    peer_ca_file: str | None,
) -> None:
    """Check two running hubs: whose identity is whose, attest and copy in both directions, folds over copies.

    Writes small messages under keys of its own; both hubs must admit clients without capabilities. Without a hub on
    the command line two hubs are started for it, as processes, and removed again; then a replica is tried as well,
    which would copy the whole of a hub of yours.

    \b
    veen selftest federated
    veen selftest federated --context a --peer-hub http://127.0.0.1:8081 --peer-pin ed25519:HEX
    """
    from veen.client.verify.pin import HubPin
    from veen.products.selftest.suite import HubAt

    # A default context, which nobody named here, is the first of two hubs only if there is a second one.
    is_alone = peer_hub is None and peer_pin is None and session.settings.is_implied("hub")
    hub = None if is_alone else _select_hub(session)
    if (hub is None) != (peer_hub is None) or (peer_hub is None) != (peer_pin is None):
        raise click.UsageError("give both hubs, --hub and --peer-hub with --peer-pin, or none")
    peer = None
    if hub is not None and peer_hub is not None and peer_pin is not None:
        peer = HubAt(
            url=peer_hub,
            pin=HubPin.parse(peer_pin),
            ca_file=None if peer_ca_file is None else Path(peer_ca_file),
            token_file=None if peer_token_file is None else Path(peer_token_file),
            insecure_http=hub.insecure_http,
            wait_seconds=hub.wait_seconds,
        )
    _run(output, "federated", hub, peer)


@selftest.verb("bridge", "The air-gap bridge between two hubs (AGB0).")
@client_options
def bridge(output: Output, session: CliSession) -> None:
    """Carry events over an air gap between two hubs, damage a bundle on the way, and reconcile both zones.

    Starts two hubs of its own, as processes, and removes them again.

    \b
    veen selftest bridge
    """
    _run(output, "bridge", _select_hub(session))


@selftest.verb("recorder", "The recorder: emit, checkpoint, verify, replay with proofs.")
@client_options
def recorder(output: Output, session: CliSession) -> None:
    """Drive a recorder end to end: roles, an agent that is started twice, checkpoints, verification, replay.

    Always on a hub of its own, as a process: the names of a recorder's streams are fixed, and on a hub that has a
    recorder the checks would write into them.

    \b
    veen selftest recorder
    """
    _run(output, "recorder", _select_hub(session))


def veen_selftest_main() -> NoReturn:
    """Run `veen-selftest core --hub URL` as `veen selftest core --hub URL` (spec-4 §8)."""
    from veen.cli.app import main

    sys.argv[1:1] = ["selftest"]
    main()
