"""Client keys that rotate by themselves (KEX1+ 4.1, D-179): nothing refused, nothing lost, nothing doubled."""

import contextlib
from dataclasses import replace

import pytest
from tests.client.hubs import GATED, ISSUER, OPEN, ORDERS, RING, Clock, client_at, hub_at, pin_of, run

from veen.client.errors import NetworkError, RotationDue
from veen.client.generations.records import control_keys
from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import create_identity, open_identity
from veen.client.identity.rotation import (
    DEVICE_SCHEMA,
    MAX_LIFETIME_SEC,
    SPARE_SEC,
    KeystoreKeys,
    RotationBounds,
)
from veen.client.send.captokens import TokenStore
from veen.client.state import StateStore
from veen.client.transport.inprocess import InProcess
from veen.core.hashing import Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import CapDerive
from veen.core.objects.speaking import SPEAKS_SCHEMA, SpeaksBinding
from veen.overlays.id.bodies import DeviceRecord

HOUR = 3_600
KEX1 = {"admission.kex1_plus": "true"}
STRICT = {**GATED, **KEX1}


class Killed(BaseException):
    """The process ends here."""


def home_with_token(tmp_path, clock, *, principal=True, streams=(ORDERS.stream_id,), ttl=40 * 86_400):
    home = Home.at(tmp_path / "alice")
    keystore = create_identity(home, "alice", None, now=int(clock()))
    subject = keystore.identity.id_sign_pk if principal else keystore.identity.client_id
    TokenStore(home.tokens_fs("alice")).put(CapToken.issue(ISSUER, subject, streams, ttl=ttl))
    return home


@contextlib.asynccontextmanager
async def alice_at(hub, home, clock, *, ring=RING, wire=None, holder=KeystoreKeys, **options):
    keystore = open_identity(home, "alice", None)
    tokens = TokenStore(home.tokens_fs("alice"))
    keys = None if holder is None else holder(keystore)
    client = client_at(
        wire or InProcess(hub.api),
        pin_of(hub),
        keystore.identity,
        home.data,
        ring=ring,
        clock=clock,
        holder=keys,
        tokens=tokens,
        **options,
    )
    async with client as connected:
        yield connected


async def say(client, body, *, gated=True, **options):
    capability = await client.token(ORDERS.stream_id) if gated else None
    return await client.send("orders", body, capability=capability, **options)


async def said(client, stream="orders"):
    """The bodies that people wrote, in order, and the statements that bind keys."""
    entries = [entry async for entry in client.read(stream)]
    bindings = [entry for entry in entries if entry.event is not None and entry.event.hdr.schema == SPEAKS_SCHEMA]
    return [entry.body for entry in entries if entry not in bindings], bindings


async def days(tmp_path, count, *, settings=STRICT, gated=True, step=HOUR):
    """A long connection and commands beside it in time, for so many days."""
    clock = Clock()
    home, sent = home_with_token(tmp_path, clock), []
    async with hub_at(tmp_path / "hub", clock=clock, settings=settings) as hub:
        for day in range(count):
            async with alice_at(hub, home, clock) as client:  # a connection of one day and a half
                for number in range(36):
                    sent.append(b"%d.%d" % (day, number))
                    await say(client, sent[-1], gated=gated)
                    clock.now += step
            for number in range(3):  # commands
                async with alice_at(hub, home, clock) as client:
                    sent.append(b"%d/%d" % (day, number))
                    await say(client, sent[-1], gated=gated)
                clock.now += step
        async with alice_at(hub, home, clock) as client:
            bodies, bindings = await said(client)
            assert bodies == sent
            generations = open_identity(home, "alice", None).identity.client_key.generation
            for entry in bindings:
                binding = SpeaksBinding.from_bytes(entry.body)
                binding.verify()
                assert binding.has_legal_lifetime
                assert binding.client_id == entry.msg.client_id
                assert binding.not_before <= entry.ts <= binding.not_after
            return generations, bindings


@pytest.mark.req("KEX1-02", "CLNT-08")
def test_three_days_at_a_hub_that_enforces_everything(tmp_path):
    """The hub refuses tokens, lifetimes and numbers beyond the bounds; nobody notices."""
    generations, bindings = run(days(tmp_path, 2))
    assert generations >= 3
    assert len(bindings) == generations - 1


@pytest.mark.slow
@pytest.mark.req("KEX1-02", "CLNT-08")
def test_twenty_days_at_a_hub_that_enforces_everything(tmp_path):
    generations, bindings = run(days(tmp_path, 12))
    assert generations >= 19
    assert len(bindings) == generations - 1


@pytest.mark.req("KEX1-02")
def test_a_key_is_replaced_after_its_messages_in_the_middle_of_a_batch(tmp_path):
    """By the bounds that the hub states, which are lower than the client's."""
    clock = Clock()
    settings = {**OPEN, **KEX1, "admission.max_msgs_per_client_id_per_label": "12"}

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=settings) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                bodies = [b"%d" % number for number in range(40)]
                outcomes = await client.send_many("orders", bodies)
                assert [outcome.seq for outcome in outcomes] == sorted(outcome.seq for outcome in outcomes)
                assert len({outcome.msg.client_id for outcome in outcomes}) == 5
                assert (await said(client))[0] == bodies

    run(check())


@pytest.mark.req("KEX1-02")
def test_a_key_is_replaced_before_it_has_signed_for_a_day(tmp_path):
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings={**OPEN, **KEX1}) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                first = (await say(client, b"1", gated=False)).msg.client_id
                clock.now += MAX_LIFETIME_SEC - SPARE_SEC - 1
                assert (await say(client, b"2", gated=False)).msg.client_id == first
                clock.now += 1
                sent = await say(client, b"3", gated=False)
                assert sent.msg.client_id == client.client_id != first
                assert sent.msg.client_seq == 2  # behind the binding
                assert (await say(client, b"4", gated=False)).msg.client_seq == 3
            keystore = open_identity(home, "alice", None)
            assert keystore.identity.client_id == client.client_id
            assert len(keystore.secrets.prekeys) == 2

    run(check())


def test_the_token_of_a_new_key_is_derived_from_that_of_the_principal(tmp_path):
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=STRICT) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                for _ in range(3):
                    await say(client, b"x")
                    clock.now += MAX_LIFETIME_SEC
            store = hub.api.context.store
            rows = store.control_rows(CapDerive.KIND)
            assert len(rows) == 3
            tokens = TokenStore(home.tokens_fs("alice")).all()
            assert (
                len([token for token in tokens if token.token.issuer_pk != ISSUER.public]) <= 2
            )  # ended ones are gone

    run(check())


def test_a_token_that_names_the_client_key_keeps_it_until_its_bound(tmp_path):
    """D-49: then a person asks for an invitation for the identity."""
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=STRICT) as hub:
            home = home_with_token(tmp_path, clock, principal=False)
            async with alice_at(hub, home, clock) as client:
                first = client.client_id
                await say(client, b"1")
                clock.now += MAX_LIFETIME_SEC - 1
                assert (await say(client, b"2")).msg.client_id == first
                clock.now += 1
                with pytest.raises(RotationDue):
                    await say(client, b"3")

    run(check())


def test_a_refusal_by_a_bound_that_the_hub_does_not_state_is_a_reason_to_rotate(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("veen.hub.admission.policy.Policy.key_bounds", lambda self: {})
    settings = {**OPEN, **KEX1, "admission.max_client_id_lifetime_sec": "600"}

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=settings) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                await say(client, b"1", gated=False)
                clock.now += 601
                outcomes = await client.send_many("orders", [b"2", b"3"])
                assert [outcome.msg.client_id for outcome in outcomes] == [client.client_id] * 2
                assert (await said(client))[0] == [b"1", b"2", b"3"]

    run(check())


# --- crashes ----------------------------------------------------------------------------------------------


STEPS = {
    "before the key": ("veen.client.identity.keystore.Keystore.save", "before"),
    "after the key": ("veen.client.identity.keystore.Keystore.save", "after"),
    "before the token": ("veen.client.send.grants.Grants.derive", "before"),
    "after the token": ("veen.client.send.grants.Grants.derive", "after"),
    "before the messages are written down": ("veen.client.state.StateStore.save", "before"),
    "after the messages are written down": ("veen.client.state.StateStore.save", "after"),
    "before they are sent": ("veen.client.send.submitting.Submitter.deliver", "before"),
    "after they are sent": ("veen.client.send.submitting.Submitter.deliver", "after"),
    "before the binding is remembered": ("veen.client.state.StateStore.write_note", "before"),
}


def killing(monkeypatch, name, when):
    """Have the process end before or after one call of a function, by its name."""
    place, _, attribute = name.rpartition(".")
    module, _, owner = place.rpartition(".")
    cls = getattr(__import__(module, fromlist=[owner]), owner)
    real = getattr(cls, attribute)
    if attribute in ("derive", "deliver"):

        async def call(*args, **kwargs):
            if when == "before":
                raise Killed
            await real(*args, **kwargs)
            raise Killed
    else:

        def call(*args, **kwargs):  # type: ignore[misc]  # a plain function in the place of a plain one
            if when == "before":
                raise Killed
            real(*args, **kwargs)
            raise Killed

    monkeypatch.setattr(cls, attribute, call)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, step):
    """The command is given again, as `veen send` is: what was written down is that message."""
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=STRICT) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                await say(client, b"before")
            clock.now += MAX_LIFETIME_SEC
            with monkeypatch.context() as patch, contextlib.suppress(Killed):
                async with alice_at(hub, home, clock) as client:
                    killing(patch, *STEPS[step])
                    await say(client, b"during", once=True)
            clock.now += 60
            async with alice_at(hub, home, clock) as client:
                if not step.startswith("before the binding"):  # that send had ended: all of it was acknowledged
                    await say(client, b"during", once=True)
                await say(client, b"after")
                bodies, bindings = await said(client)
            assert bodies == [b"before", b"during", b"after"]
            assert {entry.msg.client_id for entry in bindings} == {client.client_id}

    run(check())


@pytest.mark.parametrize("arrived", [False, True], ids=["lost on the way", "answer lost"])
@pytest.mark.parametrize("pause", [60, 3 * MAX_LIFETIME_SEC], ids=["a minute", "three days"])
@pytest.mark.parametrize("again", [False, True], ids=["something else", "the same command"])
def test_what_waits_under_an_earlier_key_arrives_once(tmp_path, arrived, pause, again):
    """Byte for byte, or sealed anew by the next key if the hub takes the old one no more."""
    clock = Clock()
    writers_only = Keyring().with_keys(ORDERS.for_writers())

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=STRICT) as hub:
            home = home_with_token(tmp_path, clock)
            async with alice_at(hub, home, clock) as client:
                await say(client, b"before")
            clock.now += MAX_LIFETIME_SEC - 400
            wire = LosingWire(InProcess(hub.api), arrived=arrived)
            async with alice_at(hub, home, clock, wire=wire, ring=writers_only) as client:
                await client.token(ORDERS.stream_id)
                wire.is_losing = True
                with pytest.raises(NetworkError):
                    await say(client, b"waiting", once=True)
            clock.now += pause
            async with alice_at(hub, home, clock, ring=writers_only) as client:
                if again:
                    assert (await say(client, b"waiting", once=True)).is_late or not arrived
                await say(client, b"after")
            async with alice_at(hub, home, clock) as client:
                bodies, _ = await said(client)
            assert bodies == [b"before", b"waiting", b"after"]
            with StateStore.open(home, "alice") as store:
                assert store.states_with_pending() == []

    run(check())


class LosingWire:
    """A wire on which submits, or their answers, get lost from some moment on."""

    def __init__(self, inner, *, arrived):
        self.inner, self.arrived, self.is_losing = inner, arrived, False

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def call(self, operation, body=b"", **options):
        if self.is_losing and "submit" in operation:
            if self.arrived:
                await self.inner.call(operation, body, **options)
            raise NetworkError("the wire is cut")
        return await self.inner.call(operation, body, **options)


# --- who it is --------------------------------------------------------------------------------------------


def test_the_binding_is_sealed_to_the_control_key_where_the_owner_is_known(tmp_path):
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=OPEN) as hub:
            home = home_with_token(tmp_path, clock)
            owner = open_identity(home, "alice", None).identity.id_sign_pk
            owned = replace(ORDERS, owner_pk=owner)
            async with alice_at(hub, home, clock, ring=Keyring().with_keys(owned)) as client:
                await say(client, b"1", gated=False)
                clock.now += MAX_LIFETIME_SEC
                await say(client, b"2", gated=False)
            control = control_keys(ORDERS.stream_id, owner)
            async with alice_at(hub, home, clock, ring=Keyring().with_keys(control)) as client:
                entries = [entry async for entry in client.read(control)]
                opened = [entry.event.hdr.schema for entry in entries if entry.event is not None]
            assert opened == [SPEAKS_SCHEMA]

    run(check())


def test_the_new_key_is_a_device_of_the_principal(tmp_path):
    """D-96, PRODUCTS-2 §4.3: once, in the stream of the principal, if the identity has its keys."""
    clock = Clock()

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=OPEN) as hub:
            home = home_with_token(tmp_path, clock)
            identity = open_identity(home, "alice", None).identity
            own = StreamKeys.create(f"hex:{Ht('id/stream/principal', identity.id_sign_pk).hex()}")
            ring = RING.with_keys(own)
            async with alice_at(hub, home, clock, ring=ring) as client:
                await say(client, b"1", gated=False)
                clock.now += MAX_LIFETIME_SEC
                for _ in range(3):
                    await say(client, b"2", gated=False)
                entries = [entry async for entry in client.read(own.stream_id)]
                devices = [entry for entry in entries if entry.event.hdr.schema == DEVICE_SCHEMA]
                assert len(devices) == 1
                record = DeviceRecord.from_bytes(devices[0].body)
                assert record.device_pk == client.client_id
                assert record.expires_at == record.created_at + MAX_LIFETIME_SEC

    run(check())


def test_bounds_are_the_lesser_of_both_sides_and_a_part_is_spared():
    early = RotationBounds().early()
    assert (early.max_client_id_lifetime_sec, early.max_msgs_per_client_id_per_label) == (86_100, 65_472)
    low = RotationBounds(max_client_id_lifetime_sec=8, max_msgs_per_client_id_per_label=3).early()
    assert (low.max_client_id_lifetime_sec, low.max_msgs_per_client_id_per_label) == (6, 3)
    least = RotationBounds(max_client_id_lifetime_sec=1, max_msgs_per_client_id_per_label=1).early()
    assert (least.max_client_id_lifetime_sec, least.max_msgs_per_client_id_per_label) == (1, 1)
