"""A hub that lies is caught, each lie by its own name, and what was believed before stays as it was (spec §9)."""

from dataclasses import replace

import pytest
from tests.client.hubs import (
    IMPATIENT,
    Clock,
    bodies,
    client_at,
    connected,
    copy_of,
    hub_at,
    person,
    pin_of,
    run,
    visiting,
)

from veen.client import errors
from veen.client.errors import (
    BadAnswer,
    Divergence,
    Dropped,
    Equivocated,
    ForeignKey,
    HubIdChanged,
    ProofInvalid,
    ReceiptMismatch,
    Reordered,
    RetiredKey,
    Rewound,
    RootMismatch,
    StaleCheckpoint,
)
from veen.client.transport.http import HttpTransport
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.client.verify.view import Forged
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.envelopes import ProofRequest
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import key_id_of
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import ConsistencyRequest, IdentityResponse
from veen.hub.api.rotation import rotate_at_rest
from veen.io.local import OsFs
from veen.testing.hostile import (
    Drops,
    Equivocates,
    Forges,
    HostileHub,
    InventsFirstKey,
    Misplaces,
    Reorders,
    Replaces,
    ReplaysCheckpoints,
    SignsWith,
    SwapsReceipts,
    TellsIdentity,
    Truncates,
    serve,
)

FOREIGN = SigningKey(b"\x66" * 32)
MODES = pytest.mark.parametrize("mode", ["full", "light"])


def hub_key(hub):
    return hub.identity.held.private[hub.identity.current_pk]


async def fill(client, count=5):
    await client.send_many("orders", [b"%d" % number for number in range(count)])


VERBS = ("send", "send_many", "read", "receipt", "checkpoint", "resync")


async def verbs(client):
    """Everything a client may do with a stream; what it raises, by verb."""
    raised = {}

    async def attempt(name, work):
        try:
            await work
        except Divergence as exc:
            raised[name] = type(exc)

    await attempt("send", client.send("orders", b"more"))
    await attempt("send_many", client.send_many("orders", [b"more", b"and more"]))
    await attempt("read", bodies(client))
    await attempt("receipt", client.receipt("orders", 5))
    await attempt("checkpoint", client.checkpoint("orders"))
    await attempt("resync", client.resync("orders", from_scratch=True))
    return raised


# --- the order of entries ---------------------------------------------------------------------------------


@pytest.mark.req("CLNT-02", "RES-02")
@pytest.mark.parametrize(
    ("lie", "error"),
    [
        (Reorders(), Reordered),
        (Misplaces(), Reordered),
        (Drops(3), Dropped),
        (Truncates(4), Rewound),
        (Forges(2), Forged),
    ],
    ids=["reorders", "misplaces", "drops", "truncates", "forges"],
)
def test_a_page_that_is_not_the_log_is_caught(tmp_path, lie, error):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            await fill(client)
            wire.lies.append(lie)
            with pytest.raises(error) as caught:
                await bodies(client)
            assert type(caught.value) is error
            assert caught.value.label == client.label("orders")
            wire.lies.clear()
            assert len(await bodies(client)) == 5

    run(check())


def test_a_new_reader_catches_a_hole_too(tmp_path):
    """It has no view yet; the roots in the receipts do not fit what is served."""

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            await fill(client)
            wire.lies.append(Drops(3))
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as other:
                with pytest.raises(Dropped):
                    await bodies(other)

    run(check())


def test_a_full_writer_catches_a_hole_in_what_others_wrote(tmp_path):
    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                await fill(other)
            wire.lies.append(Truncates(3))
            with pytest.raises(Dropped):
                await client.send("orders", b"mine")
            wire.lies.clear()
            assert [sent.seq for sent in await client.recover("orders")] == [6]

    run(check())


# --- signatures -------------------------------------------------------------------------------------------


@MODES
@pytest.mark.req("CLNT-01", "HID-02", "HID-12", "KEX0-01", "CRY-20")
def test_a_foreign_key_is_caught_by_every_verb(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            await fill(client)
            wire.lies.append(SignsWith(FOREIGN))
            assert await verbs(client) == dict.fromkeys(VERBS, ForeignKey)

    run(check())


@pytest.mark.req("HID-03", "HID-06")
def test_a_retired_key_is_caught(tmp_path):
    """Signed by a key of the hub, but after its time (D-41)."""

    async def check():
        clock = Clock()
        async with connected(tmp_path, clock=clock) as (hub, _, client):
            await fill(client)
            old = hub_key(hub)
        rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 0)
        clock.now += 100
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = HostileHub(InProcess(hub.api))
            pin = HubPin.of_identity(hub.identity.held.identity)
            async with client_at(wire, pin, person("bob", clock.now), tmp_path / "bob", clock=clock) as other:
                assert len(await bodies(other)) == 5  # what the old key signed in its time stays good
                wire.lies.append(SignsWith(old))
                with pytest.raises(RetiredKey):
                    await other.send("orders", b"now")
                wire.lies.clear()
                assert [sent.seq for sent in await other.recover("orders")] == [6]

    run(check())


@pytest.mark.req("HID-12", "HID-13")
def test_whoever_answers_cannot_choose_the_hub_id_of_a_pinned_key(tmp_path):
    """D-174: an invented older first key would move the client to other labels, where the log is empty."""

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            await fill(client)
            pin, hub_id = pin_of(hub), client.hub_id
            wire.lies.append(InventsFirstKey(FOREIGN))
            with pytest.raises(ForeignKey, match="not signed by key"):  # at first contact
                async with client_at(wire, pin, person("bob"), tmp_path / "bob"):
                    pass
            with pytest.raises(HubIdChanged):  # in the middle of a session
                await client.identity()
            with pytest.raises(HubIdChanged):
                await client.status()
        async with hub_at(tmp_path / "hub") as hub:
            wire = HostileHub(InProcess(hub.api))
            who = person("alice")
            for signer in (None, hub_key(hub)):  # a stranger, and the hub itself
                wire.lies[:] = [InventsFirstKey(FOREIGN, signer)]
                for pinned in (pin, HubPin.of_key(pin.keys[0].hub_pk, hub_id)):  # from the state, or from the context
                    with pytest.raises(HubIdChanged) as caught:
                        async with client_at(wire, pinned, who, tmp_path / "home"):
                            pass
                    assert caught.value.expected == hub_id
            with pytest.raises(HubIdChanged):  # a fresh state, but the context remembers
                async with client_at(wire, HubPin.of_key(pin.keys[0].hub_pk, hub_id), who, tmp_path / "fresh"):
                    pass
            wire.lies.clear()
            with pytest.raises(HubIdChanged):  # the context names another one than was learned
                async with client_at(wire, HubPin.of_key(pin.keys[0].hub_pk, b"i" * 32), who, tmp_path / "home"):
                    pass
            async with client_at(wire, pin, who, tmp_path / "home") as client:
                assert len(await bodies(client)) == 5

    run(check())


def test_one_lie_at_first_contact_spoils_nothing(tmp_path):
    """Times that nobody signed are not kept, so the honest hub is believed afterwards (D-174)."""

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            wire = HostileHub(InProcess(hub.api))

            def moves(operation, _, answer):
                if operation != "tooling/identity":
                    return answer
                identity = IdentityResponse.from_bytes(answer.body)
                keys = tuple(replace(key, valid_from=key.valid_from - 7) for key in identity.hub_keys)
                return replace(answer, body=replace(identity, hub_keys=keys).to_bytes())

            wire.lies.append(moves)
            with pytest.raises(ForeignKey):
                async with client_at(wire, pin_of(hub), person("alice"), tmp_path / "home"):
                    pass
            wire.lies.clear()
            async with client_at(wire, pin_of(hub), person("alice"), tmp_path / "home") as client:
                await fill(client)
                assert len(await bodies(client)) == 5

    run(check())


def test_a_key_that_was_proven_is_not_taken_back(tmp_path):
    """Neither by an older identity that is served again, nor after the pin moved to another key of the hub."""

    async def check():
        clock = Clock()
        who = person("alice", clock.now)
        async with connected(tmp_path, clock=clock) as (hub, wire, _):
            old = await wire.call("tooling/identity")
            first = pin_of(hub)
        rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 0)
        clock.now += 100
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = HostileHub(InProcess(hub.api))
            second = pin_of(hub)
            async with client_at(wire, second, who, tmp_path / "home", clock=clock) as client:
                assert client.pin.keys[-1].hub_pk == second.keys[0].hub_pk
                assert client.hub_id == hub.identity.hub_id
            wire.lies.append(InventsFirstKey(FOREIGN, hub_key(hub)))  # its successor signed another hub_id before
            with pytest.raises(HubIdChanged, match="signed another hub_id before"):
                async with client_at(wire, first, who, tmp_path / "home", clock=clock):
                    pass
            wire.lies[:] = [Replaces("tooling/identity", old.body)]
            for pin in (first, second):
                with pytest.raises(ForeignKey):
                    async with client_at(wire, pin, who, tmp_path / "home", clock=clock):
                        pass

    run(check())


@pytest.mark.req("HID-06")
def test_a_retired_key_signs_no_checkpoint_of_later_entries(tmp_path):
    """D-166: with epoch_sec 0 too, the time of the last entry names the key."""

    async def check():
        clock = Clock()
        async with connected(tmp_path, clock=clock) as (hub, _, client):
            await fill(client)
            old, before = hub_key(hub), await client.checkpoint("orders", 5)
            pin = pin_of(hub)
        rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 0)
        clock.now += 100
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = HostileHub(InProcess(hub.api))
            async with client_at(wire, pin, person("bob", clock.now), tmp_path / "bob", clock=clock) as other:
                await other.send("orders", b"6")
                assert await other.checkpoint("orders", 5) == before  # its bytes survive the rotation
                wire.lies.append(lambda op, body, answer: SignsWith(old)(op, body, answer) if "check" in op else answer)
                assert (await other.checkpoint("orders", 5)).hub_sig == before.hub_sig
                with pytest.raises(RetiredKey):
                    await other.checkpoint("orders")

    run(check())


@pytest.mark.req("HID-02")
def test_a_hub_cannot_widen_the_pin_by_its_own_word(tmp_path):
    async def check():
        async with connected(tmp_path) as (hub, wire, _):
            wire.lies += [TellsIdentity(FOREIGN.public, key_id_of(FOREIGN.public), 2**40)]
            with pytest.raises(ForeignKey):
                async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob"):
                    pass
            with pytest.raises(ForeignKey):
                async with client_at(
                    InProcess(hub.api), HubPin.of_key(FOREIGN.public), person("eve"), tmp_path / "eve"
                ):
                    pass

    run(check())


@MODES
@pytest.mark.req("CLNT-01")
def test_a_receipt_for_another_message_is_caught(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            wire.lies.append(SwapsReceipts())
            await client.send("orders", b"one")
            with pytest.raises(ReceiptMismatch):
                await client.send("orders", b"two")
            with pytest.raises(ReceiptMismatch):
                await client.receipt("orders", 2)
            wire.lies.clear()
            assert [sent.seq for sent in await client.recover("orders")] == [2]
            assert await bodies(client) == [b"one", b"two"]

    run(check())


def test_a_receipt_in_the_middle_of_a_batch_is_not_handed_out_unchecked(tmp_path):
    """One signature carries a batch; the others are checked when they are asked for."""

    class SpoilsOne:
        def __call__(self, operation, body, answer):
            if operation != "tooling/submit_batch":
                return answer
            items = list(cbor.sequence(answer.body))
            receipt = Receipt.from_bytes(items[1])
            items[1] = replace(receipt, hub_sig=bytes(64)).to_bytes()
            return replace(answer, body=b"".join(items))

    async def check():
        async with connected(tmp_path) as (_, wire, client):
            wire.lies.append(SpoilsOne())
            first, two, three = await client.send_many("orders", [b"1", b"2", b"3"])
            assert (first.receipt.stream_seq, three.receipt.stream_seq, two.seq) == (1, 3, 2)
            with pytest.raises(ForeignKey):
                _ = two.receipt

    run(check())


# --- two histories ----------------------------------------------------------------------------------------


@MODES
@pytest.mark.req("RCPT-07")
def test_two_receipts_for_one_place_are_evidence(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (hub, wire, client):
            await fill(client)
            wire.lies.append(Equivocates(hub_key(hub), 5))
            for work in (client.receipt("orders", 5), bodies(client), client.proof("orders", 5)):
                with pytest.raises(Equivocated) as caught:
                    await work
                evidence = Equivocation.from_bytes(caught.value.evidence.to_bytes())
                evidence.verify()
                assert evidence.hub_pks == (hub.identity.current_pk,)
                await client.report_equivocation(evidence)

    run(check())


@MODES
@pytest.mark.req("RCPT-07", "HID-14")
def test_a_forked_history_is_caught_with_evidence(tmp_path, mode):
    """A copy of the hub goes on without us and admits another's message where ours stood."""
    verbs_by_name = {
        "send": lambda client: client.send("orders", b"next"),
        "read": bodies,
        "resync": lambda client: client.resync("orders"),
        "checkpoint": lambda client: client.checkpoint("orders"),
    }

    async def check():
        who, home = person("alice"), tmp_path / "home"
        async with visiting(tmp_path / "hub", who, home, mode=mode) as client:
            await fill(client, 3)
        fork = copy_of(tmp_path / "hub", tmp_path / "fork")
        async with visiting(tmp_path / "hub", who, home, mode=mode) as client:
            await client.send("orders", b"ours")
        async with visiting(fork, person("bob"), tmp_path / "bob") as bob:
            await bob.send_many("orders", [b"another", b"and one more"])
        for verb in verbs_by_name.values():
            async with visiting(fork, who, home, mode=mode) as client:
                with pytest.raises(Equivocated) as caught:
                    await verb(client)
                caught.value.evidence.verify()

    run(check())


@MODES
@pytest.mark.req("CKPT-11")
def test_a_rewound_hub_is_caught(tmp_path, mode):
    """Restored from an old backup: its log ends before what it proved."""

    async def check():
        who, home = person("alice"), tmp_path / "home"
        async with visiting(tmp_path / "hub", who, home, mode=mode) as client:
            await fill(client, 3)
        backup = copy_of(tmp_path / "hub", tmp_path / "backup")
        async with visiting(tmp_path / "hub", who, home, mode=mode) as client:
            await fill(client, 3)
        async with visiting(backup, who, home, mode=mode) as client:
            for verb in (
                bodies,
                lambda client: client.resync("orders"),
                lambda client: client.receipt("orders", 6),
                lambda client: client.checkpoint("orders"),
                lambda client: client.send("orders", b"next"),
            ):
                with pytest.raises(Rewound):
                    await verb(client)

    run(check())


def test_an_empty_hub_with_the_right_key_is_caught(tmp_path):
    async def check():
        who, home = person("alice"), tmp_path / "home"
        async with hub_at(tmp_path / "hub"):
            pass
        empty = copy_of(tmp_path / "hub", tmp_path / "empty")
        async with visiting(tmp_path / "hub", who, home) as client:
            await fill(client)
        async with visiting(empty, who, home) as client:
            for verb in (
                bodies,
                lambda client: client.resync("orders"),
                lambda client: client.checkpoint("orders"),
                lambda client: client.send("orders", b"next"),
            ):
                with pytest.raises(Rewound):
                    await verb(client)

    run(check())


# --- checkpoints and proofs -------------------------------------------------------------------------------


@MODES
@pytest.mark.req("CKPT-11")
def test_a_stale_checkpoint_is_caught(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            wire.lies.append(ReplaysCheckpoints())
            await fill(client)
            assert (await client.checkpoint("orders")).upto_seq == 5
            await client.send("orders", b"more")
            for work in (client.checkpoint("orders"), client.resync("orders")):
                with pytest.raises(StaleCheckpoint):
                    await work
            assert (await client.checkpoint("orders", 3)).upto_seq == 3  # an old one that was asked for is fine (D-40)

    run(check())


def test_a_proof_for_something_else_is_caught(tmp_path):
    async def check():
        async with connected(tmp_path, mode="light") as (_, wire, client):
            await fill(client, 8)
            honest = HostileHub(wire.honest)
            label = client.label("orders")
            other = await honest.call("v1/proof", ProofRequest(label=label, stream_seq=3).to_bytes())
            wire.lies.append(Replaces("v1/proof", other.body))
            with pytest.raises(ProofInvalid):
                await client.proof("orders", 4)
            short = await honest.call(
                "tooling/consistency", ConsistencyRequest(label=label, from_size=2, to_size=5).to_bytes()
            )
            wire.lies.append(Replaces("tooling/consistency", short.body))
            with pytest.raises(ProofInvalid):
                await client.consistency("orders", 2, 6)

    run(check())


def test_a_root_that_the_entries_do_not_lead_to_is_caught(tmp_path):
    """A new reader holds no receipt to compare with: the tree itself tells."""

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            await fill(client)
            wire.lies.append(Equivocates(hub_key(hub), 3))
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as other:
                with pytest.raises(RootMismatch):
                    await bodies(other)

    run(check())


# --- answers that are no answers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 40, b"<html>login</html>", b"\xa0"], ids=["none", "noise", "page", "map"]
)
def test_an_answer_outside_the_protocol_is_named_so(tmp_path, data):
    async def check():
        async with connected(tmp_path, retry=IMPATIENT) as (_, wire, client):
            await fill(client)
            for operation in ("v1/submit", "v1/stream", "tooling/checkpoint_latest", "v1/receipt"):
                wire.lies[:] = [Replaces(operation, data)]
                works = {
                    "v1/submit": lambda: client.send("orders", b"x"),
                    "v1/stream": lambda: bodies(client),
                    "tooling/checkpoint_latest": lambda: client.checkpoint("orders"),
                    "v1/receipt": lambda: client.receipt("orders", 1),
                }
                with pytest.raises(BadAnswer):
                    await works[operation]()
                wire.lies[:] = [Replaces(operation, data, status=502)]
                with pytest.raises(BadAnswer):
                    await works[operation]()

    run(check())


# --- over a socket ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "error"),
    [
        (Reorders(), Reordered),
        (Drops(3), Dropped),
        (Truncates(3), Rewound),
        (SignsWith(FOREIGN), ForeignKey),
        (Forges(1), Forged),
    ],
    ids=["reorders", "drops", "truncates", "foreign", "forges"],
)
def test_the_same_lies_over_a_real_socket(tmp_path, lie, error):
    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            await fill(client)
            bob, home = person("bob"), tmp_path / "bob"
            async with serve(wire) as url, client_at(HttpTransport(url), pin_of(hub), bob, home) as other:
                assert len(await bodies(other)) == 5
                wire.lies.append(lie)
                with pytest.raises(error):
                    await bodies(other)

    run(check())


def test_each_lie_has_an_error_of_its_own():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Divergence)]
    assert len(kinds) > 10
    assert len({kind.code for kind in kinds}) == len(kinds)
