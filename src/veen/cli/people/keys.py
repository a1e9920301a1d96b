"""`veen keys`: the generations of a stream's keys (D-171).

`veen revoke`: revoke the right of a person to write or to read.
"""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.people.contacts import with_authority
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.entries import when
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.people import ME, card_of, contact_store
from veen.cli.shared.values import SPAN
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.generations.fold import KeyState
    from veen.client.generations.owning import Rotated
    from veen.client.identity.contacts import ContactBook
    from veen.client.identity.keyring import Keyring, StreamKeys

keys = LazyGroup(
    "keys",
    help="""Keys of shared streams: generations, readers, owner.

    Who reads a stream is written into the stream: each hand-over of its read key is a message. To take the key from a
    reader, its owner announces a new generation, wrapped for those who stay.
    """,
)


def _owner_name(session: CliSession, book: "ContactBook", owner_pk: bytes | None) -> str:
    if owner_pk is None:
        return "unknown"
    if owner_pk in session.keystore.identity.principals:
        return ME
    contact = book.by_identity(owner_pk)
    return f"?{owner_pk.hex()[:16]}" if contact is None else contact.name


@keys.verb("list", "The keys of all streams; of one stream also its readers.")
@click.argument("stream", type=STREAM, required=False)
@client_options
def list_(output: Output, session: CliSession, stream: str | None) -> None:
    """List the keys that you have. With STREAM show its generations and readers, by the log up to now.

    \b
    veen keys list
    veen keys list orders
    """
    book = contact_store(session).load()
    if stream is None:
        ring = session.keystore.secrets.keyring
        entries = [_row(session, book, key) for key in ring.entries]
        columns = ("stream", "generation", "rights", "owner")
        output.result(
            {"keys": entries}, lambda: output.table(columns, [[entry[name] for name in columns] for entry in entries])
        )
        return
    client = session.client()
    with output.progress("reading the stream for messages about keys"):
        state = client.run(lambda client: client.key_state(stream))
    ring = client.keyring
    generations = [_row(session, book, key, state) for key in ring.readers(stream)]
    readers = [] if state is None else [_reader(book, card) for card in state.members]
    invites = 0 if state is None else len(state.invites)
    owner_name = _owner_name(session, book, ring.owner_of(stream))
    data = {"stream": stream, "owner": owner_name, "generations": generations, "readers": readers, "bearers": invites}

    def human() -> None:
        output.fields([("stream", stream), ("owner", owner_name)])
        columns = ("generation", "rights", "announced", "shredded")
        output.table(columns, [[row[name] for name in columns] for row in generations])
        if readers:
            output.table(("reader", "card_id"), [(reader["name"], reader["card_id"]) for reader in readers])
        for row in generations:
            if row["opened_by"] is not None:
                output.note(f"generation {row['opened_by']} leads back to {row['generation']}: see `veen keys check`")
        if invites:
            output.note(f"{invites} invitations by code were not used yet, or their users could not say so")

    output.result(data, human)


def _reader(book: "ContactBook", card: Any) -> dict[str, Any]:
    contact = book.by_identity(card.id_sign_pk)
    return {"name": f"?{card.name}" if contact is None else contact.name, "card_id": card.card_id}


def _row(
    session: CliSession, book: "ContactBook", key: "StreamKeys", state: "KeyState | None" = None
) -> dict[str, Any]:
    announced = next((row for row in state.generations if row.pk == key.reader_pk), None) if state else None
    return {
        "stream": str(key),
        "generation": key.generation,
        "rights": "read and write" if key.can_read else "write",
        "owner": _owner_name(session, book, key.owner_pk),
        "reader_pk": key.reader_pk.hex(),
        "announced": None if announced is None else when(announced.ts),
        "shredded": state is not None and state.is_shredded(key.generation),
        "opened_by": None if state is None else state.find_opening_generation(key.generation),
        "bound_to": None if key.bound_to is None else key.bound_to.hex(),
    }


@keys.verb("rotate", "Announce new keys to all readers.")
@click.argument("stream", type=STREAM)
@click.option("--without", "names", multiple=True, metavar="NAME", help="Reader to exclude. Repeatable.")
@click.option("--reason", default="", help=options.REASON)
@click.option("--no-history", is_flag=True, help="Do not include earlier generations in later invitations.")
@client_options
def rotate(
    output: Output, session: CliSession, stream: str, names: tuple[str, ...], reason: str, no_history: bool
) -> None:
    """Make the next generation of the keys of STREAM and announce it, wrapped for each of its readers.

    Writers seal to it as soon as they see the announcement, readers take it over by themselves. Only the owner can.

    \b
    veen keys rotate orders
    veen keys rotate orders --without bob --reason "left the team"
    """
    done = rotate_keys(session, stream, names, reason=reason, history=not no_history)
    show_rotated(output, session, stream, done)


def rotate_keys(
    session: CliSession, stream: str, names: tuple[str, ...], *, reason: str = "", history: bool = True
) -> "Rotated":
    """Announce a new generation to all readers except those named."""
    from veen.client.generations import owning

    without = {card_of(session, name)[0].id_sign_pk for name in names}
    identity = session.keystore.identity
    with session.output.progress("announcing a new generation"):
        return with_authority(
            session,
            stream,
            lambda client: owning.rotate(client, identity, stream, without=without, reason=reason, history=history),
        )


def show_rotated(output: Output, session: CliSession, stream: str, done: "Rotated") -> None:
    book = contact_store(session).load()
    data = {
        "stream": stream,
        "generation": done.keys.generation,
        "seq": done.sent.seq,
        "readers": [_reader(book, card)["name"] for card in done.readers],
        "removed": [_reader(book, card)["name"] for card in done.removed],
        "bearers_ended": done.bearers,
    }
    output.result(data)
    note_ended(output, done)


def note_ended(output: Output, done: "Rotated") -> None:
    """Print the number of invitations by code that ended with a rotation."""
    if done.bearers:
        output.note(
            f"{done.bearers} invitations by code ended: who used one without a card in the stream is invited again"
        )


@keys.verb("shred", "Have all readers forget the keys of an earlier generation.")
@click.argument("stream", type=STREAM)
@click.option(
    "--generation",
    type=click.IntRange(min=0),
    required=True,
    help="Number of the generation. `veen keys list` shows them.",
)
@click.option("--reason", default="", help=options.REASON)
@click.option("--weak", is_flag=True, help="Shred it even if the log has a field that leads back to it.")
@click.option("--yes", is_flag=True, help=options.YES)
@client_options
def shred(
    output: Output, session: CliSession, stream: str, generation: int, reason: str, weak: bool, yes: bool
) -> None:
    """Forget the read key of an earlier generation of STREAM, here and in the clients of all readers.

    What was sealed to it stays in the log. Readers are asked to forget the key; whoever kept keys and log can open it.
    Not possible for the generation in use: rotate first. Refused without --weak if a generation that an earlier release
    announced leads back to this one: every reader of that generation still finds the key in the log.

    \b
    veen keys shred orders --generation 0 --yes
    """
    from veen.client.generations import owning

    if not yes:
        if not output.may_ask:
            raise Fail(
                "E.LOCAL.INPUT", "a read key would be lost for good", "there is no terminal to confirm at", "add --yes"
            )
        click.confirm(f"Forget the read key of generation {generation} of {stream} for good?", abort=True, err=True)
    identity = session.keystore.identity
    sent = with_authority(
        session,
        stream,
        lambda client: owning.ask_to_shred(client, identity, stream, generation, weak=weak, reason=reason),
    )
    state = session.client().run(lambda client: client.key_state(stream))
    leading = None if state is None else state.find_opening_generation(generation)
    data = {
        "stream": stream,
        "generation": generation,
        "seq": sent.seq,
        "time": when(int(time.time())),
        "opened_by": leading,
    }
    output.result(data)
    output.note("readers are asked to forget; whoever kept keys and log can open it")
    if leading is not None:
        output.note(f"generation {leading} leads back to {generation}, which therefore does not count as shredded")


@keys.verb("check", "Find generations that the log still opens, and cards that no record made readers.")
@click.argument("streams", type=STREAM, nargs=-1, metavar="[STREAM]...")
@client_options
def check(output: Output, session: CliSession, streams: tuple[str, ...]) -> None:
    """Check the records about the keys of STREAM for two faults of earlier releases. Default: all streams whose owner
    is known.

    A generation may hold the key of the one before it (`back`), so that shredding or withholding the earlier one has
    no effect. The newest generation may be wrapped for a reader who had been removed. The repair of both is a new
    generation, `veen keys rotate STREAM --no-history`, and then shredding the earlier ones, the newest first.

    \b
    veen keys check
    veen keys check orders
    """
    from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict

    client = session.client()
    ring = client.keyring
    names = streams or tuple(sorted({str(key) for key in ring.entries if key.owner_pk is not None}))
    rows: list[dict[str, Any]] = []
    compared: list[Coverage] = []
    reasons: list[Reason] = []
    for name in names:
        with output.progress(f"reading {name} for messages about keys"):
            state = client.run(lambda client: client.key_state(name))  # noqa: B023 - called at once
        if state is None:
            compared.append(Coverage(log=name, read=0, head=None, stated_by=StatedBy.NOBODY, identity=None))
            continue
        size = sum(cursor.stream_seq for cursor in state.cursors)
        pin = f"hub_id:{client.hub_id.hex()}"
        compared.append(Coverage(log=name, read=size, head=size, stated_by=StatedBy.HUB, identity=pin))
        opened = [
            {"generation": gen, "opened_by": leading, "forgotten": state.is_forgotten(gen)}
            for gen in range(state.gen)
            if (leading := state.find_opening_generation(gen)) is not None
        ]
        unnamed = [card_id.hex() for card_id in state.find_unnamed_readers()]
        rows.append({"stream": name, "generation": state.gen, "opened": opened, "unnamed_readers": unnamed})
        for row in opened:
            text = f"{name}: generation {row['opened_by']} leads back to {row['generation']}"
            reasons.append(Reason(Because.POLICY, f"{text}, which is shredded" if row["forgotten"] else text))
        for card_id in unnamed:
            text = f"{name}: generation {state.gen} is wrapped for the card {card_id}, which no record made a reader"
            reasons.append(Reason(Because.POLICY, text))
    verdict = Verdict.of(compared, reasons)

    def human() -> None:
        show_verdict(output, verdict)

    output.result({"streams": rows, **verdict_json(verdict)}, human)
    end_by(
        verdict,
        "keys",
        hint="veen keys rotate STREAM --no-history",
    )


@keys.verb("owner", "Owner of a stream, whose announcements count.")
@click.argument("stream", type=STREAM)
@click.argument("name", required=False)
@identity_options
def owner(output: Output, session: CliSession, stream: str, name: str | None) -> None:
    """Show whose announcements of new keys you follow in STREAM; with NAME (a contact, a card, or "me") change it.

    Whoever makes the keys of a stream is its owner, and an invitation names the owner. A key that was given to you as a
    word of an earlier release names nobody.

    \b
    veen keys owner orders
    veen keys owner orders alice
    """
    from dataclasses import replace

    if name is not None:
        own = session.keystore.identity.id_sign_pk
        owner_pk = own if name == ME else card_of(session, name)[0].id_sign_pk

        def change(ring: "Keyring") -> "Keyring":
            return ring.with_owner(stream, owner_pk)

        with session.home.lock(session.identity_name):
            keystore = session.keystore
            keystore.save(replace(keystore.secrets, keyring=change(keystore.secrets.keyring)))
    ring = session.keystore.secrets.keyring
    pk = ring.owner_of(stream)
    data = {
        "stream": stream,
        "owner": _owner_name(session, contact_store(session).load(), pk),
        "owner_pk": None if pk is None else pk.hex(),
    }
    output.result(data)


@keys.verb("bind", "Use the keys of a stream at one hub only.")
@click.argument("stream", type=STREAM)
@client_options
def bind(output: Output, session: CliSession, stream: str) -> None:
    """Bind the keys of STREAM to the hub of the context, or to its root if that is pinned.

    Keys that came by an invitation are bound already. Keys that you made, or that an earlier release kept, are used at
    every hub; an invitation to a stream of the same name at another hub is then refused. After this command it is not.

    \b
    veen keys bind orders --context office
    """
    from dataclasses import replace

    place = session.pinned.public if session.pinned.is_root else session.client().hub_id
    keystore = session.keystore
    keystore.save(replace(keystore.secrets, keyring=keystore.secrets.keyring.bind(stream, place)))
    output.result({"stream": stream, "bound_to": place.hex()})


revoke = LazyGroup(
    "revoke",
    help="""Revoke the right of a person to write or to read.

    A writer is refused by the hub, by token and client key. A reader is given no later generation of the keys of a
    stream; what she could read before she can still read.
    """,
    table={
        "publish": (
            "veen.products.policy.commands.group:revoke_publish",
            "Publish a revocation in the realm, as `policy revoke`.",
        ),
    },
)


@revoke.verb("writer", "Have the hub refuse a person's tokens and client keys.")
@click.argument("name")
@click.option("--ttl", type=SPAN, help="Time until the revocation expires. Default: never.")
@client_options
def writer(output: Output, session: CliSession, name: str, ttl: int | None) -> None:
    """Have the hub refuse what NAME (a contact, or a card) writes: the tokens that you issued, and the client keys.

    Needs the right to administer the hub (--token-file), and a hub with admission.kex1_plus. It counts from the next
    second on. Messages that were admitted before stay in the log.

    \b
    veen revoke writer bob --token-file admin.token
    """
    from veen.client.errors import HubRefused
    from veen.core.errors import ApiCode
    from veen.core.hashing import H
    from veen.core.objects.policies import MAX_POLICY_ITEMS, Revocation

    card, contact = card_of(session, name)
    client, now = session.client(), int(time.time())
    claimed = {card.client_id} if contact is None else set(contact.client_ids)
    # A card can name a key of somebody else: what others are known by is not revoked with it.
    others = _keys_of_others(session, card.id_sign_pk)
    client_ids = claimed - others
    with output.progress("looking for client keys that were announced in streams"):
        client_ids |= client.run(lambda client: _find_announced_keys(client, card.id_sign_pk))
    tokens = () if contact is None else contact.tokens
    # The identity itself, too: a hub that takes derived tokens refuses every key that it lets write (D-179).
    targets = [("client-id", client_id) for client_id in sorted({*client_ids, card.id_sign_pk})]
    for token in tokens:
        # By its first link too, so that a renewal of it is refused as well (D-173).
        targets += [("auth-ref", token.auth_ref()), ("cap-token", H(token.sig_chain[0]))]
    revocations = [
        Revocation(kind=kind, target=target, ts=now, ttl=ttl) for kind, target in targets[-MAX_POLICY_ITEMS:]
    ]
    try:
        records = client.run(lambda client: client.revoke(revocations))
    except HubRefused as exc:
        if exc.code == ApiCode.CONFLICT.code:
            raise Fail(
                exc.code,
                "this hub does not enforce revocations",
                exc.message,
                "its operator sets admission.kex1_plus = true; until then no key is refused",
            ) from exc
        raise
    gated = client.status().capability_gating
    data: dict[str, Any] = {
        "name": name,
        "client_keys": len(client_ids),
        "client_ids": sorted(key.hex() for key in client_ids),
        "tokens": len(tokens),
        "records": [record.seq for record in records],
        "capability_gating": gated,
    }
    output.result(data)
    for key in sorted(claimed & others):
        output.note(f"the card names {key.hex()}, which is known as somebody else's: it was not revoked")
    if not gated:
        output.note("this hub does not require tokens: with a new client key anyone can write again")
    if not tokens and gated:
        output.note("no token that you issued is known here; `veen cap status` of the issuer lists others")


def _keys_of_others(session: CliSession, id_sign_pk: bytes) -> set[bytes]:
    """Return the keys of the identity in use and of all contacts but one."""
    identity = session.keystore.identity
    keys = {identity.id_sign_pk, *(key.client_id for key in identity.client_keys)}
    for contact in contact_store(session).load().contacts:
        if contact.id_sign_pk != id_sign_pk:
            keys |= {contact.id_sign_pk, *contact.client_ids}
    return keys - {id_sign_pk} if identity.id_sign_pk != id_sign_pk else keys


async def _find_announced_keys(client: "Client", id_sign_pk: bytes) -> set[bytes]:
    """Return the client keys that an identity proved, in the streams that we know, by their logs up to now."""
    keys: set[bytes] = set()
    for stream_id in {entry.stream_id for entry in client.keyring.entries if entry.owner_pk is not None}:
        state = await client.key_state(stream_id)
        if state is not None:
            keys |= {row.client_id for row in state.authors if row.id_sign_pk == id_sign_pk}
    return keys


@revoke.verb("reader", "Exclude a reader from later keys of a stream.")
@click.argument("name")
@click.argument("stream", type=STREAM)
@click.option("--reason", default="", help=options.REASON)
@client_options
def reader(output: Output, session: CliSession, name: str, stream: str, reason: str) -> None:
    """Announce a new generation of the keys of STREAM to all its readers but NAME. Only the owner can.

    Writers seal to it as soon as they see it. What was sealed before, NAME can still open.

    \b
    veen revoke reader bob orders
    """

    show_rotated(output, session, stream, rotate_keys(session, stream, (name,), reason=reason))
