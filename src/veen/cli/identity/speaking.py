"""`veen id bind`, `bindings` and `revoke-key`: client keys that speak for an identity in a stream (D-179)."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.overlay_commands import show_folded, state_of
from veen.cli.shared.people import cells
from veen.core.errors import VeenError

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.identity import Identity
    from veen.overlays.speaks import Bindings


@click.command("bind")
@click.argument("stream", type=STREAM)
@click.option("--all-retired", is_flag=True, help="Bind all earlier client keys of the keystore, too.")
@client_options
def bind(output: Output, session: CliSession, stream: str, all_retired: bool) -> None:
    """Have your client key speak for your identity in STREAM: operations then name the identity, which stays.

    `veen op` does so by itself. With --all-retired, operations that name an earlier client key belong to your identity
    from here on, too. Members of the stream learn that the keys are yours; the hub does not.

    \b
    veen id bind deals
    veen id bind deals --all-retired
    """
    from veen.client.identity.speaking import bind_keys
    from veen.client.send.writing import Sent

    client = session.client()
    identity = session.keystore.identity
    bound = _bindings(session, stream).keys
    wanted = identity.client_keys if all_retired else identity.client_keys[-1:]
    bound_ids = {client_id for _, client_id in bound}
    keys = [key for key in wanted if key.client_id not in bound_ids]
    with output.progress("sending"):
        outcomes = client.run(lambda client: bind_keys(client, identity, stream, keys)) if keys else []
    sent = [outcome for outcome in outcomes if isinstance(outcome, Sent)]
    data = {
        "stream": stream,
        "principal_pk": identity.id_sign_pk.hex(),
        "bound": [key.client_id.hex() for key in keys[: len(sent)]],
        "already_bound": len(wanted) - len(keys),
    }
    output.result(data)
    for outcome in outcomes:
        if not isinstance(outcome, Sent):
            raise outcome


@click.command("bindings")
@click.argument("stream", type=STREAM)
@view_options
@client_options
def bindings(output: Output, session: CliSession, stream: str, view: View) -> None:
    """List the client keys that speak for identities in STREAM, from when to when, and which of them were ended.

    \b
    veen id bindings deals
    """
    from veen.overlays.speaks import SpeaksFold

    folded = state_of(session, SpeaksFold(), [stream], view)
    rows = [
        {
            "client_id": client_id.hex(),
            "principal_pk": binding.principal_pk.hex(),
            "not_before": binding.not_before,
            "not_after": binding.not_after,
            "state": _state_of(binding, folded.as_of),
        }
        for (_, client_id), binding in folded.state.keys.items()
    ]
    successions = [
        {"principal_pk": principal.hex(), "successor": succession.successor_pk.hex()}
        for (_, principal), succession in folded.state.successors.items()
    ]
    data = {"bindings": rows, "successions": successions}

    def human() -> None:
        cell = cells(session)
        columns = ("client_id", "principal_pk", "not_before", "not_after", "state")
        table = []
        for (_, client_id), row in zip(folded.state.keys, rows, strict=True):
            table.append([client_id.hex(), cell(row["principal_pk"]), *(row[name] for name in columns[2:])])
        output.table(columns, table)
        for row in successions:
            output.note(f"{cell(row['successor'])} took the place of {cell(row['principal_pk'])}")

    show_folded(session, folded, data, human)


def _state_of(binding: Any, as_of: int) -> str:
    if binding.is_ended:
        return "ended"
    if as_of < binding.not_before:
        return "later"
    return "live" if as_of <= binding.not_after else "expired"


def _bindings(session: CliSession, stream: str) -> "Bindings":
    from veen.cli.shared.folding import fold_streams
    from veen.overlays.speaks import SpeaksFold

    state: Bindings = fold_streams(session, SpeaksFold(), [stream]).state
    return state


@click.command("revoke-key")
@click.argument("client_id", metavar="[CLIENT]", required=False)
@click.option("--all-but-current", is_flag=True, help="End all client keys of your identity except the one in use.")
@click.option(
    "--stream",
    "streams",
    type=STREAM,
    multiple=True,
    help="Stream in which to end the bindings. Repeatable. Default: all.",
)
@click.option("--reason", help="Reason, stored in the log.")
@client_options
def revoke_key(
    output: Output,
    session: CliSession,
    client_id: str | None,
    all_but_current: bool,
    streams: tuple[str, ...],
    reason: str | None,
) -> None:
    """End what the client key CLIENT of your identity may say for it, in every stream of the keyring, and at the hub.

    Its earlier messages stay valid. After its end a bound key speaks for nobody, not even for itself. The hub is asked
    to refuse the key; that needs the right to administer it (--token-file). If streams cannot be written to, they are
    listed with exit code 6; repeat the command.

    \b
    veen id revoke-key 8a88… --reason "laptop stolen"
    veen id revoke-key --all-but-current --token-file admin.token
    """
    identity = session.keystore.identity
    keys = _keys_to_end(identity, client_id, all_but_current=all_but_current)
    places = streams or _streams_of(session)
    if not places:
        raise click.UsageError("the keyring has no stream; give --stream")
    session.client()  # a hub that is not the pinned one ends the command here
    ended: list[str] = []
    failed: list[dict[str, str]] = []
    with output.progress("ending bindings"):
        for stream in places:
            try:
                if _end_in(session, identity, stream, keys, reason):
                    ended.append(stream)
            except (VeenError, OSError) as exc:  # the other streams go on
                failed.append({"stream": stream, "cause": str(exc) or type(exc).__name__})
        refused_by_hub, cause = _tell_hub(session, keys)
    data = {
        "client_ids": [key.hex() for key in keys],
        "ended_in": ended,
        "failed": failed,
        "refused_by_hub": refused_by_hub,
    }
    output.result(data)
    if not refused_by_hub:
        output.note(f"the hub still admits the key: {cause}")
        for key in keys:
            output.next(f"veen policy revoke client-id {key.hex()} --token-file FILE   (its administrator)")
    if failed:
        raise Fail(
            "E.INCOMPLETE",
            f"the bindings stand in {len(failed)} of {len(places)} streams",
            "; ".join(f"{row['stream']}: {row['cause']}" for row in failed)[:500],
            "repeat the command when they can be written to",
        )


def _keys_to_end(identity: "Identity", text: str | None, *, all_but_current: bool) -> Sequence[bytes]:
    from veen.cli.shared.files import hex32

    if (text is None) != all_but_current:
        raise click.UsageError("give one of CLIENT and --all-but-current")
    if text is None:
        return [key.client_id for key in identity.client_keys[:-1]]
    return [hex32(text)]


def _streams_of(session: CliSession) -> tuple[str, ...]:
    """Return every stream of the keyring: its name, or its id where the name is not known."""
    entries = session.keystore.secrets.keyring.entries
    names = {entry.stream_id: entry.name for entry in entries if entry.name is not None}
    return tuple(dict.fromkeys(names.get(entry.stream_id, f"hex:{entry.stream_id.hex()}") for entry in entries))


def _end_in(session: CliSession, identity: "Identity", stream: str, keys: Sequence[bytes], reason: str | None) -> bool:
    """End the bindings that stand in one stream; return False if none does."""
    from veen.client.identity.speaking import end_binding

    standing = {
        client_id
        for (_, client_id), binding in _bindings(session, stream).keys.items()
        if binding.principal_pk == identity.id_sign_pk and not binding.is_ended
    }
    wanted = [key for key in keys if key in standing]

    async def end(client: "Client") -> None:
        for key in wanted:
            await end_binding(client, identity, stream, client_id=key, reason=reason)

    if wanted:
        session.client().run(end)
    return bool(wanted)


def _tell_hub(session: CliSession, keys: Sequence[bytes]) -> tuple[bool, str]:
    """Ask the hub to refuse the keys; return True if it does, else False and the reason."""
    from veen.client.errors import HubRefused, NetworkError
    from veen.core.objects.policies import Revocation

    revocations = [Revocation(kind="client-id", target=key, ts=int(time.time()), ttl=None) for key in keys]
    try:
        session.client().run(lambda client: client.revoke(revocations))
    except (HubRefused, NetworkError) as exc:
        return False, str(exc)
    return True, ""
