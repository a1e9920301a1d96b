"""Subjects of the published histories: the writers of events, and the reading of their state (docs/vectors.md).

A `Subject` draws the next message of a random history. tools/history_vectors.py keeps it or draws another one, so that
every event of a good history counts, and one or two of a faulty one do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.event import Event
from veen.core.hashing import H, Ht
from veen.core.labels import schema_id
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import Authority
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import PrincipalNext, SpeaksBinding, SpeaksEnd
from veen.overlays import anchoring, crdt, crud, kv, queue, speaks
from veen.overlays.airgap import bodies as airgap
from veen.overlays.discovery import bodies as discovery
from veen.overlays.discovery import directory
from veen.overlays.federation import realm
from veen.overlays.framework.fold import AnyFold, Mirrors
from veen.overlays.framework.schema import Draft, Issue, decode
from veen.overlays.framework.snapshot import Cut
from veen.overlays.framework.state import state_bytes
from veen.overlays.id import drafts as id_drafts
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, device_id_of, group_id_of, org_id_of, scoped_org_id_of
from veen.overlays.id.letter import LetterIdFold
from veen.overlays.naming import label_class, schema_registry
from veen.overlays.operations import (
    access,
    agreement,
    delegation,
    mirror,
    paid,
    publication,
    queryaudit,
    recovery,
    state_checkpoint,
)
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.overlays.recorder import checkpoint as recorder_checkpoint
from veen.overlays.recorder import config as recorder_config
from veen.overlays.recorder import events as recorder_events
from veen.overlays.rpc import messages as rpc
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream
from veen.overlays.wallet.drafts import body_of
from veen.overlays.wallet.letter import LetterLedgerFold
from veen.overlays.wallet.policy import owners_by

SEEDS: Final = {
    "hub": 2, "alice": 0x21, "bob": 0x22, "carol": 0x23, "mallory": 0x24, "service": 0x25, "bridge": 0x26,
    "principal_a": 0x31, "principal_b": 0x32, "issuer": 7, "stranger": 9,
}  # fmt: skip
KEYS: Final = {name: SigningKey(bytes([seed]) * 32) for name, seed in SEEDS.items()}
ALICE, BOB, CAROL = (KEYS[name].public for name in ("alice", "bob", "carol"))
SERVICE, BRIDGE = KEYS["service"].public, KEYS["bridge"].public
PRINCIPALS: Final = (KEYS["principal_a"], KEYS["principal_b"])
MAIN: Final = H(b"main")  # the stream of every subject that has none of its own
IDS: Final = tuple(bytes([number]) * 32 for number in (0x41, 0x42, 0x43))


class Step(NamedTuple):
    """A message before it is sealed."""

    draft: Draft
    key: SigningKey
    stream_id: bytes


@dataclass
class Scene:
    """State of a writer: the history so far, and a source of choices."""

    rng: Random
    settings: Mapping[str, Any]
    now: int
    events: list[Event] = field(default_factory=list)
    place: int = 0  # how many entries were attempted

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def number(self, upto: int) -> int:
        return self.rng.randrange(upto + 1)

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def person(self) -> SigningKey:
        return KEYS[self.pick("alice", "alice", "bob", "carol", "mallory")]

    def name(self) -> bytes:
        """Return an identity: a client key, or a principal that some client keys may be bound to."""
        return self.pick(ALICE, BOB, PRINCIPALS[0].public)  # type: ignore[no-any-return]  # one of the three

    def msg_id(self) -> bytes:
        """Return the msg_id of an earlier event, or one of no event if there is none."""
        return self.rng.choice(self.events).msg_id if self.events else bytes(32)

    def reference(self) -> bytes:
        return operation_id_of(self.msg_id()) if self.chance(2) else self.msg_id()


Write = Callable[[Scene], Step]
Script = Callable[[Scene], Iterator[tuple[Step, int]]]  # messages, and the seconds that pass before each


def draw_step(subject: Subject, scene: Scene, *, may_break: bool) -> Step:
    """Draw the next message; with `may_break` its body or its parent may be damaged."""
    if scene.settings.get("bridges") and scene.events and scene.chance(4):
        original = scene.rng.choice(scene.events)
        hdr = original.hdr
        draft = Draft(schema=hdr.schema, body=original.body, parent_id=original.msg_id, expires_at=hdr.expires_at)
        return Step(draft, KEYS["bridge"], original.stream_id)
    step = subject.write(scene)
    if not may_break and scene.chance(20):
        return step._replace(draft=Draft(schema=H(b"unrelated.v1"), body=b"anything"))
    return step._replace(draft=_damage(scene, step.draft)) if may_break and scene.chance(8) else step


def _damage(scene: Scene, draft: Draft) -> Draft:
    body = draft.body
    tree = cbor.decode(body)
    assert isinstance(tree, dict)  # noqa: S101 - every body is a map
    first = next(iter(tree))
    damaged = scene.pick(
        b"",
        body[:-1],
        body + b"\x00",
        cbor.encode({**tree, "zzz": 0}),
        cbor.encode({name: value for name, value in tree.items() if name != first}),
        cbor.encode({**tree, first: [tree[first]]}),
        cbor.encode({name: value[:-1] if isinstance(value, bytes) else value for name, value in tree.items()}),
        cbor.encode({**tree, "ver": 2} if "ver" in tree else {}),
        body if draft.parent_id is not None else cbor.encode([]),
    )
    return replace(draft, body=damaged, parent_id=None if damaged == body else draft.parent_id)


# --- states -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Result of a history: the canonical state, and the events without effect."""

    tag: str
    state: bytes
    faults: list[tuple[bytes, int, str]]  # label, stream_seq, code
    view: Any  # the state as the fold shows it

    @property
    def state_hash(self) -> bytes:
        return Ht(self.tag, self.state)


Read = Callable[[Any, Sequence[Event], str], Reading]


def _places(issues: Sequence[Issue]) -> list[tuple[bytes, int, str]]:
    return [(issue.label, issue.stream_seq, issue.code) for issue in issues]


def _by_fold(make: Callable[..., AnyFold], letter: Callable[..., AnyFold] | None = None) -> Read:
    """Read by a fold. `make` gets the settings by name, and `mirrors` if the settings name bridges."""

    def read(settings: Any, events: Sequence[Event], policy: str) -> Reading:
        named = unhex(settings)
        if bridges := named.pop("bridges", ()):
            named["mirrors"] = Mirrors.by(bridges)
        fold = letter(**named) if policy == "letter" and letter is not None else make(**named)
        summary = fold.summarize(events)
        view = fold.view(summary)
        return Reading(f"veen/state-{fold.name}", state_bytes(view), _places(fold.issues(summary)), view)

    return read


def unhex(value: Any) -> Any:
    """Return settings as folds take them: hex of 32 bytes and more becomes bytes."""
    if isinstance(value, dict):
        return {unhex(key): unhex(element) for key, element in value.items()}
    if isinstance(value, list):
        return [unhex(element) for element in value]
    return bytes.fromhex(value) if isinstance(value, str) and len(value) >= 64 else value


@dataclass(frozen=True)
class Subject:
    """One overlay, operation profile or product."""

    name: str
    write: Write
    read: Read
    settings: tuple[dict[str, Any], ...] = ({},)  # in the JSON form; histories take them in turn
    has_letter: bool = False
    quarter: int = 3  # a quarter of the histories
    shortest: int = 3  # entries of a history
    longest: int = 6
    scripts: tuple[Script, ...] = ()  # histories that are written, under the first settings


# --- key-value, records, queues, CRDTs, RPC ---------------------------------------------------------------------


def write_kv(scene: Scene) -> Step:
    ts = scene.pick(None, None, scene.now, scene.now - 50, scene.now + 50)
    if scene.chance(4):
        draft = kv.delete(scene.pick("a", "b"), ts=ts)
    else:
        value = scene.pick(1, -5, "x", [True, None], {"b": 1, "a": "я"}, b"\x01")
        expires_at = scene.pick(None, None, scene.now + 2, scene.now + 600)
        draft = kv.put(scene.pick("a", "b", "ключ"), value, ts=ts, expires_at=expires_at)
    return Step(draft, scene.person(), MAIN)


def write_crud(scene: Scene) -> Step:
    entity, ident = scene.pick("user", "team"), scene.pick("1", "2")
    fields = {name: scene.pick(1, "x", None) for name in ("name", "age") if scene.chance(2)}
    if_rev = scene.pick(None, None, scene.number(2))
    draft = scene.pick(
        crud.create(entity, ident, fields, if_rev=if_rev),
        crud.update(entity, ident, fields, if_rev=if_rev),
        crud.delete(entity, ident, if_rev=if_rev),
    )
    return Step(draft, scene.person(), MAIN)


def write_queue(scene: Scene) -> Step:
    if not scene.events or scene.chance(2):
        draft = queue.enqueue(scene.pick(1, "job", {"n": 1}), expires_at=scene.pick(None, None, scene.now + 3))
    else:
        draft = scene.pick(queue.ack, queue.nack)(scene.msg_id(), group=scene.pick("", "a", "b"))
    return Step(draft, scene.person(), MAIN)


def write_lww(scene: Scene) -> Step:
    draft = crdt.lww_set(scene.pick(b"k", b"l", b""), scene.pick(b"", b"v", b"w"), ts=scene.now + scene.number(2) - 1)
    return Step(draft, scene.person(), MAIN)


def write_orset(scene: Scene) -> Step:
    if scene.chance(3):
        draft = crdt.orset_remove(scene.rng.choice(([], [IDS[0]], [IDS[0], IDS[1]])))
    else:
        draft = crdt.orset_add(scene.pick(b"a", b"b"), add_id=scene.pick(*IDS), expires_at=None)
    return Step(draft, scene.person(), MAIN)


def write_counter(scene: Scene) -> Step:
    return Step(crdt.counter_add(scene.pick(*IDS), scene.pick(0, 1, 5, 2**64 - 1)), scene.person(), MAIN)


def write_rpc(scene: Scene) -> Step:
    if not scene.events or scene.chance(2):
        draft = rpc.call(
            scene.pick("add", "sub"),
            scene.pick(None, [1, 2], {"x": 1}),
            timeout_ms=scene.pick(None, 1500, 60_000),
            idem=scene.pick(None, 1, 2),
        )
    elif scene.chance(3):
        draft = rpc.refuse(scene.msg_id(), scene.pick("NO", rpc.EXPIRED), scene.pick(None, "busy"))
    else:
        draft = rpc.answer(scene.msg_id(), scene.pick(None, 3, "ok"))
    return Step(draft, scene.person(), MAIN)


# --- identity, wallets, bindings --------------------------------------------------------------------------------

REALM: Final = H(b"realm")
OTHER_REALM: Final = H(b"another realm")
ORG: Final = org_id_of(KEYS["carol"].public)
ORGS: Final = (ORG, scoped_org_id_of(ORG, REALM))
ACCOUNTS: Final = tuple(ctx_id_of(key.public, REALM) for key in PRINCIPALS)


def write_id(scene: Scene) -> Step:
    ts = scene.now + scene.pick(0, 0, 0, -20, 10**9 if scene.chance(2) else 0)
    principal, expires_at = scene.pick(*PRINCIPALS).public, scene.pick(None, None, scene.now + 20)
    device = scene.pick(ALICE, BOB)
    name = scene.pick("Ann", "Bo", None)
    kind = scene.rng.randrange(10)
    if kind == 0:
        sent = id_drafts.principal(principal, created_at=ts, info=scene.pick(None, {"note": "n"}))
    elif kind == 1:
        sent = id_drafts.device(
            principal,
            device_pk=device,
            dh_pk=IDS[0],
            created_at=ts,
            expires_at=expires_at,
            disabled=scene.pick(None, True),
        )
    elif kind in (2, 3):
        sent = id_drafts.ctx_profile(
            scene.pick(*ACCOUNTS), REALM, updated_at=ts, display_name=name, prefs=scene.pick(None, {"b": 1, "a": 2})
        )
    elif kind == 4:
        sent = id_drafts.org_profile(scene.pick(*ORGS), created_at=1, updated_at=ts, display_name=name)
    elif kind == 5:
        sent = id_drafts.change_group(
            scene.pick(*ORGS),
            "eng",
            updated_at=ts,
            add=[scene.pick(*ACCOUNTS)],
            remove=scene.rng.choice(([], [ACCOUNTS[0]])),
        )
    elif kind == 6:
        org = scene.pick(*ORGS)
        groups = scene.rng.choice(([], [group_id_of(org, "eng")]))
        sent = id_drafts.bind_role(org, "admin", ts=ts, ctx=[scene.pick(*ACCOUNTS)], groups=groups)
    elif kind == 7:
        target = scene.pick(("ctx", ACCOUNTS[0]), ("ctx", ACCOUNTS[1]), ("org", ORG))
        handle = scene.pick("@ann", "@bo")
        sent = id_drafts.handle(REALM, handle, target_type=target[0], target_id=target[1], ts=ts, expires_at=expires_at)
    elif kind == 8:
        sent = id_drafts.external_link(
            REALM, provider="https://idp.example", external_sub=scene.pick("s1", "s2"), ts=ts, ctx_id=ACCOUNTS[0]
        )
    else:
        account = scene.pick(None, ctx_id_of(principal, REALM), *ACCOUNTS)
        target = {} if account is None else {"ctx_id": account, "realm_id": REALM}
        sent = scene.pick(
            id_drafts.revoke_by_principal(
                principal, ts=ts, device_id=None if target else device_id_of(device), **target
            ),
            id_drafts.revoke_by_org(ORG, ts=ts, device_id=device_id_of(device), reason="lost"),
        )
    astray = scene.chance(12)
    return Step(sent.draft, scene.person(), MAIN if astray else sent.stream_id)


WALLETS: Final = {
    "alice": (ACCOUNTS[0], "EUR"), "bob": (ACCOUNTS[1], "EUR"), "carol": (H(b"account of carol"), "USD"),
}  # fmt: skip
OWNERS: Final = {ctx_id.hex(): [KEYS[name].public.hex()] for name, (ctx_id, _) in WALLETS.items()}


def write_wallet(scene: Scene) -> Step:
    first = ("alice", scene.pick("bob", "carol"), "alice", "alice")
    name = first[scene.place] if scene.place < len(first) else scene.pick("alice", "alice", "bob", "carol")
    ctx_id, currency = WALLETS[name]
    ids = {who: wallet_id_of(REALM, *account) for who, account in WALLETS.items()}
    wallet, ts = ids[name], scene.now + scene.pick(0, 0, 0, 5, -5, 90_000 if scene.chance(3) else 0)
    amount, ref = scene.pick(1, 5, 10, 40), scene.pick(None, None, b"r1")
    kinds = ((0,), (0,), (1,), (4, 5, 8, 9, 9))  # wallets first, then money, then what decides whether it may leave
    kind = scene.rng.choice(kinds[scene.place] if scene.place < len(kinds) else range(10))
    if kind == 0:
        draft = drafts.open_wallet(realm_id=REALM, ctx_id=ctx_id, currency=currency, created_at=ts)
    elif kind in (1, 2, 3):
        draft = drafts.deposit(wallet, 10 * amount, ts=ts, ref=ref)
    elif kind == 4:
        draft = drafts.withdraw(wallet, amount, ts=ts, ref=ref)
    elif kind in (5, 6, 7):
        draft = drafts.transfer(wallet, ids[scene.pick(*ids)], amount, ts=ts, transfer_id=scene.pick(*IDS))
    elif kind == 8:
        draft = drafts.limit(wallet, scene.pick(None, 10, 60), ts=ts)
    else:
        draft = scene.pick(
            drafts.freeze(wallet, ts=ts),
            drafts.unfreeze(wallet, ts=ts),
            drafts.close(wallet, ts=ts),
            drafts.adjust(wallet, scene.pick(-7, 7), ts=ts, reason="fix"),
        )
    key = KEYS["service"] if scene.chance(2) else KEYS[name]
    key = KEYS["mallory"] if scene.chance(15) else key
    stream = MAIN if scene.settings.get("owners") else wallet_stream(body_of(draft).wallet_id)
    return Step(draft, key, IDS[0] if scene.chance(20) else stream)


# Each row of docs/compliance.md, "Where the defaults part from the text", as a history.

_WALLET_ID: Final = {name: wallet_id_of(REALM, *account) for name, account in WALLETS.items()}


def _send(draft: Draft, name: str = "alice") -> Step:
    return Step(draft, KEYS[name], wallet_stream(body_of(draft).wallet_id))


def _open_wallets(scene: Scene, *names: str) -> Iterator[tuple[Step, int]]:
    """Open wallets and pay 100 into that of alice."""
    for name in names:
        ctx_id, currency = WALLETS[name]
        draft = drafts.open_wallet(realm_id=REALM, ctx_id=ctx_id, currency=currency, created_at=scene.now)
        yield _send(draft, name), 1
    yield _send(drafts.deposit(_WALLET_ID["alice"], 100, ts=scene.now)), 1


def _transfer(scene: Scene, to: str, amount: int = 10) -> Step:
    return _send(drafts.transfer(_WALLET_ID["alice"], _WALLET_ID[to], amount, ts=scene.now, transfer_id=IDS[0]))


def script_another_day(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice")
    yield _send(drafts.limit(_WALLET_ID["alice"], 10, ts=scene.now)), 1
    yield _send(drafts.withdraw(_WALLET_ID["alice"], 8, ts=scene.now)), 1
    yield _send(drafts.withdraw(_WALLET_ID["alice"], 7, ts=scene.now - 90_000)), 1
    yield _send(drafts.withdraw(_WALLET_ID["alice"], 6, ts=scene.now)), 1


def script_frozen_source(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice", "bob")
    yield _send(drafts.freeze(_WALLET_ID["alice"], ts=scene.now)), 1
    yield _transfer(scene, "bob"), 1


def script_another_currency(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice", "carol")
    yield _transfer(scene, "carol"), 1


def script_used_transfer_id(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice", "bob", "carol")
    yield _transfer(scene, "bob"), 1
    yield _transfer(scene, "bob", 20), 1
    yield _transfer(scene, "carol", 20), 1


def script_to_oneself(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice")
    yield _transfer(scene, "alice"), 1


def script_repeated_ref(scene: Scene) -> Iterator[tuple[Step, int]]:
    yield from _open_wallets(scene, "alice")
    for _ in range(2):
        yield _send(drafts.deposit(_WALLET_ID["alice"], 5, ts=scene.now, ref=b"r1")), 1


def script_stolen_identity(scene: Scene) -> Iterator[tuple[Step, int]]:
    """Write an event of a stranger that comes first and names a payment as its parent."""
    yield from _open_wallets(scene, "alice", "bob")
    yield _send(drafts.deposit(_WALLET_ID["bob"], 7, ts=scene.now)), 5
    forged = drafts.deposit(_WALLET_ID["alice"], 0, ts=scene.now)
    yield _send(replace(forged, parent_id=scene.events[-1].msg_id), "mallory"), -2


def script_dated_ahead(scene: Scene) -> Iterator[tuple[Step, int]]:
    for name, ahead in (("ahead", 10**9), ("now", 0)):
        sent = id_drafts.ctx_profile(ACCOUNTS[0], REALM, updated_at=scene.now + ahead, display_name=name)
        yield Step(sent.draft, KEYS["alice"], sent.stream_id), 1
        sent = id_drafts.handle(REALM, "@a", target_type="ctx", target_id=ACCOUNTS[not ahead], ts=scene.now + ahead)
        yield Step(sent.draft, KEYS["alice"], sent.stream_id), 1


WALLET_SCRIPTS: Final = (
    script_another_day,
    script_frozen_source,
    script_another_currency,
    script_used_transfer_id,
    script_to_oneself,
    script_repeated_ref,
    script_stolen_identity,
)


def _wallet_policy(institution: Any = (), currencies: Any = None, owners: Any = None) -> WalletPolicy:
    policy = WalletPolicy()
    if institution:
        policy = WalletPolicy.institutional(services=institution, currencies=currencies)
    return policy if owners is None else policy.on_shared_streams(owners_by(owners))


def fold_wallets(kind: Callable[..., AnyFold]) -> Callable[..., AnyFold]:
    def make(mirrors: Mirrors | None = None, **named: Any) -> AnyFold:
        return kind(policy=_wallet_policy(**named), mirrors=mirrors or Mirrors())

    return make


def binding(scene: Scene) -> Step:
    """Bind a client key to a principal; now and then with a signature that does not verify, or for too long."""
    principal, key = scene.pick(PRINCIPALS[0], *PRINCIPALS), KEYS[scene.pick("alice", "bob", "carol")]
    stream_id = MAIN if not scene.chance(15) else IDS[0]
    until = scene.now + scene.pick(86_400, 86_400, 86_400, 20, 0, 200_000)
    body = SpeaksBinding.issue(principal, key, stream_id=stream_id, not_before=scene.now - 60, not_after=until)
    if scene.chance(10):
        body = scene.pick(replace(body, sig_client=bytes(64)), replace(body, sig_principal=bytes(64)))
    return Step(Draft(schema=schema_id(body.KIND), body=body.to_bytes()), key, MAIN)


def write_speaks(scene: Scene) -> Step:
    principal, kind = scene.pick(PRINCIPALS[0], *PRINCIPALS), scene.rng.randrange(6)
    body: Any
    if scene.place == 0 or kind < 3:
        return binding(scene)
    if kind < 5:
        client_id = scene.pick(None, ALICE, BOB, CAROL)
        body = SpeaksEnd.issue(principal, stream_id=MAIN, client_id=client_id, ended_at=scene.pick(None, scene.now))
        body = replace(body, sig_principal=bytes(64)) if scene.chance(10) else body
    else:
        body = PrincipalNext.issue(principal, scene.pick(KEYS["issuer"], *PRINCIPALS), stream_id=MAIN)
    return Step(Draft(schema=schema_id(body.KIND), body=body.to_bytes()), scene.person(), MAIN)


def _or_binding(write: Callable[[Scene], Draft], one_in: int = 8) -> Write:
    """Write an operation in the main stream, or a binding of the key of its sender."""

    def draw(scene: Scene) -> Step:
        if scene.chance(one_in):
            return binding(scene)
        return Step(write(scene), scene.person(), MAIN)

    return draw


# --- operation profiles -----------------------------------------------------------------------------------------

TOKENS: Final = (
    CapToken.issue(KEYS["issuer"], PRINCIPALS[0].public, [MAIN], ttl=1_000_000),
    CapToken.issue(PRINCIPALS[0], ALICE, [MAIN], ttl=1_000_000),
    CapToken.issue(PRINCIPALS[0], BOB, [MAIN], ttl=1_000_000),
    CapToken.issue(PRINCIPALS[0], CAROL, [IDS[0]], ttl=1_000_000),
)
_LINKS: Final = [token.auth_ref() for token in TOKENS]
CAPS_SETTING: Final = [
    {"token": token.to_bytes().hex(), "issued_at": 1_700_000_000, "revoked_at": revoked_at}
    for token, revoked_at in zip(TOKENS, (None, None, 1_700_000_060, None), strict=True)
]


def _caps(rows: Any) -> delegation.Caps:
    return delegation.Caps(
        [delegation.KnownCap(CapToken.from_bytes(row["token"]), row["issued_at"], row["revoked_at"]) for row in rows]
    )


def delegate_inner(scene: Scene, inner: Draft) -> Draft:
    agent, links = scene.pick((ALICE, 1), (ALICE, 1), (BOB, 2), (CAROL, 3))
    chain = scene.rng.choice([[_LINKS[0], _LINKS[links]]] * 4 + [_LINKS[:1], [bytes(32)], _LINKS[2::-1]])
    return delegation.delegate(inner, principal=PRINCIPALS[0].public, agent=agent, chain=chain)


def write_access(scene: Scene) -> Draft:
    if scene.chance(3):
        return access.revoke(scene.name(), scene.pick(None, scene.reference()))
    streams = scene.rng.choice(([MAIN], [MAIN, IDS[0]], [access.ACCESS_ADMIN]))
    more = scene.rng.choice(({}, {"maximum_rate_per_second": 1, "maximum_burst": 2}, {"reason": "r"}))
    return access.grant(scene.name(), streams, expiry_time=scene.now + scene.pick(600, 600, 60, -10), **more)


def write_paid(scene: Scene) -> Draft:
    if scene.chance(6):
        return access.grant(
            scene.name(), [MAIN], expiry_time=scene.now + 600, maximum_amount=scene.pick(None, 5, 50), currency_code="c"
        )
    body = paid.PaidOperation(
        operation_type="buy",
        operation_args=scene.pick(None, {"b": 1, "a": 2}),
        payer_account=account_id_of(scene.pick(ALICE, ALICE, BOB, PRINCIPALS[0].public)),
        payee_account=account_id_of(scene.name()),
        amount=scene.pick(0, 3, 10),
        currency_code=scene.pick(None, "c", "c", "d"),
        operation_reference=scene.pick(None, None, IDS[0]),
        ttl_seconds=scene.pick(None, None, 60, 0),
    )
    return paid.pay(body, now=scene.now)


def write_paid_or_delegated(scene: Scene) -> Draft:
    draft = write_paid(scene)
    return delegate_inner(scene, draft) if scene.chance(4) else draft


def write_delegated(scene: Scene) -> Draft:
    return delegate_inner(scene, write_access(scene))


def write_agreement(scene: Scene) -> Draft:
    if scene.place == 0 or scene.chance(4):
        parties = scene.rng.choice([[ALICE], [ALICE, BOB], [ALICE, PRINCIPALS[0].public]])
        times = scene.rng.choice(({}, {}, {"expiry_time": scene.now + 40}, {"effective_time": scene.now + 5}))
        return agreement.define(IDS[0], 1 + scene.number(2), terms_hash=H(b"terms"), parties=parties, **times)
    decision = scene.pick("accept", "accept", "reject", "withdraw")
    return agreement.confirm(IDS[0], 1 + scene.number(2), scene.name(), decision)


def write_publication(scene: Scene) -> Draft:
    draft = publication.publish(
        scene.pick(*IDS),
        scene.name(),
        content_root=scene.pick(MAIN, IDS[1]),
        content_form="list",
        content_class=scene.pick("model", "model", "data"),
        version=scene.pick("1", "2", "v1.2.0", "1.10.0-rc.1"),
        labels=scene.pick(None, ("x", "y")),
    )
    return _damage_text(draft, version="") if scene.chance(15) else draft


def _damage_text(draft: Draft, **changes: Any) -> Draft:
    tree = cbor.decode(draft.body)
    assert isinstance(tree, dict)  # noqa: S101 - every body is a map
    return replace(draft, body=cbor.encode({**tree, **changes}))


def write_recovery(scene: Scene) -> Draft:
    usual = CAROL, IDS[1]
    target, new = scene.pick(usual, usual, usual, (CAROL, IDS[2]), (IDS[1], CAROL))
    kinds = ("request", "approve", "approve", "execute")
    kind = kinds[scene.place] if scene.place < len(kinds) else scene.pick(*kinds)
    if kind == "request":
        return recovery.request(target, new)
    if kind == "approve":
        return recovery.approve(target, new, scene.pick(ALICE, BOB, CAROL), scene.pick("approve", "approve", "reject"))
    approvals = [event.msg_id for event in scene.events if event.hdr.schema == recovery.APPROVAL.id]
    return recovery.execute(target, new, approvals[-scene.pick(1, 2) :] or [scene.reference()])


def write_audit(scene: Scene) -> Step:
    if scene.chance(6):
        return binding(scene)
    more = scene.rng.choice(({}, {"query_parameters": {"b": 1, "a": 2}}, {"purpose_code": "care"}))
    draft = queryaudit.audit(scene.name(), scene.pick("a", "b"), "personal-data", **more)
    return Step(draft, KEYS["service"] if not scene.chance(5) else scene.person(), MAIN)


def write_mirror(scene: Scene) -> Step:
    leaf = scene.pick(*IDS)
    body = mirror.FederationMirror(
        source_hub_identifier=mirror.hub_identifier(MAIN),
        source_label=IDS[0],
        source_stream_seq=1 + scene.number(2),
        source_leaf_hash=leaf,
        source_receipt_root=scene.pick(H(leaf), H(leaf), IDS[0]),
        target_label=IDS[1],
    )
    draft = mirror.MIRROR.draft(body, parent_id=leaf if not scene.chance(8) else MAIN)
    return Step(draft, KEYS["service"] if not scene.chance(5) else scene.person(), MAIN)


def fold_recovery(*, guardians: Any, threshold: int, executors: Any, **more: Any) -> AnyFold:
    return recovery.RecoveryFold(guards=recovery.Guards.of(guardians, threshold, executors=executors), **more)


def _with_caps(make: Callable[..., AnyFold]) -> Callable[..., AnyFold]:
    return lambda caps=(), **more: make(caps=_caps(caps), **more)


# --- realms, names, statements, discovery -----------------------------------------------------------------------


def write_realm(scene: Scene) -> Step:
    ts, ttl = scene.now + scene.pick(0, -30, 40), scene.pick(None, None, 60)
    streams = realm.admin_streams()
    if scene.chance(2):
        draft = realm.revoke(scene.pick("client-id", "auth-ref"), scene.pick(*IDS), ts=ts, ttl=ttl)
        stream = streams.revocation
    else:
        draft = realm.assign(
            Authority(
                realm_id=scene.pick(realm.DEFAULT_REALM, realm.DEFAULT_REALM, realm.DEFAULT_REALM, REALM),
                stream_id=scene.pick(*IDS),
                primary_hub=scene.pick(*IDS),
                replica_hubs=(),
                policy="single-primary",
                ts=ts,
                ttl=ttl or 3600,
            )
        )
        stream = streams.fed_admin
    key = KEYS["service"] if not scene.chance(6) else scene.person()
    return Step(draft, key, stream if not scene.chance(8) else MAIN)


def write_class(scene: Scene) -> Step:
    draft = label_class.classify(
        scene.pick(*IDS), scene.pick("user", "bulk", "other"), retention_hint=scene.pick(None, 3600)
    )
    draft = _damage_text(draft, **{"class": ""}) if scene.chance(12) else draft
    key = KEYS["service"] if not scene.chance(6) else scene.person()
    return Step(draft, key, realm.admin_streams().label_class if not scene.chance(8) else MAIN)


def write_schema(scene: Scene) -> Step:
    draft = schema_registry.register(
        H(b"a.v1"),
        scene.pick("a.v1", "b.v1"),
        "v1",
        owner=scene.pick(None, ALICE),
        ts=scene.now + scene.pick(0, -9, 99),
    )
    draft = _damage_text(draft, name="") if scene.chance(12) else draft
    key = KEYS["service"] if not scene.chance(6) else scene.person()
    return Step(draft, key, realm.admin_streams().schema_meta if not scene.chance(8) else MAIN)


def write_anchor(scene: Scene) -> Step:
    body = anchoring.AnchorStatement(
        hub_id=IDS[0], label=scene.pick(*IDS), upto_seq=1 + scene.number(2), mmr_root=scene.pick(MAIN, IDS[2]), epoch=0
    )
    return Step(anchoring.ANCHOR.draft(body), scene.person(), MAIN)


def write_state(scene: Scene) -> Step:
    cuts = [Cut(label=label, upto_seq=3 + scene.number(1), mmr_root=IDS[2]) for label in IDS[: 1 + scene.number(1)]]
    draft = state_checkpoint.checkpoint(
        state_id=scene.pick(*IDS), state_class="kv", state_hash=scene.pick(*IDS), cuts=cuts
    )
    if scene.chance(8):
        wrong = scene.pick({"state_class": ""}, {"upto_stream_seq": 99}, {"metadata": {"cuts": [[1]]}})
        draft = _damage_text(draft, **wrong)
    return Step(draft, scene.person(), MAIN)


def write_discovery(scene: Scene) -> Step:
    kind, ident = scene.pick(*discovery.KINDS), scene.pick(*IDS[:2])
    ttl_sec = scene.pick(0, 600, 600)
    if scene.chance(4):
        draft = discovery.retire(kind, ident, scene.pick(None, "moved"))
    elif kind == "hub":
        scheme = "https" if not scene.chance(8) else "ftp"
        draft = discovery.advertise(
            discovery.HubAdvert(
                hub_id=ident,
                hub_pk=KEYS["hub"].public,
                profile_id=IDS[2],
                region="eu",
                tags=("t",),
                endpoints=(),
                overlays=(),
                ttl_sec=ttl_sec,
                version="1",
            )
        )
        draft = _damage_text(draft, endpoints=[{"kind": "https", "url": f"{scheme}://hub.example"}])
    elif kind == "overlay":
        advert = discovery.OverlayAdvert(overlay_id=ident, name="kv", version="1", schemas=(), tags=(), ttl_sec=ttl_sec)
        draft = discovery.advertise(advert)
        draft = _damage_text(draft, name="") if scene.chance(8) else draft
    else:
        draft = discovery.advertise(
            discovery.ServiceAdvert(
                service_id=ident,
                name="calc",
                overlay_id=IDS[2],
                methods=("add",),
                stream_ids=(MAIN,),
                regions=(),
                required_caps=(),
                tags=(),
                ttl_sec=ttl_sec,
            )
        )
    key = KEYS["service"] if not scene.chance(4) else scene.person()
    return Step(draft, key, discovery.STREAMS[kind] if not scene.chance(10) else MAIN)


def fold_discovery(*, publishers: Any = None, **more: Any) -> AnyFold:
    who = directory.FIRST_WRITER if publishers is None else directory.Publishers.of(publishers)
    return directory.DirectoryFold(publishers=who, **more)


# --- products: the recorder and the air-gap bridge --------------------------------------------------------------

CHANGES: Final = H(b"record/infrastructure/changes")
CHECKPOINTS: Final = H(b"record/infrastructure/checkpoints")


def write_recorder(scene: Scene) -> Step:
    kind = scene.rng.randrange(5)
    if kind < 2:
        about = {"stream_id": MAIN, "stream": "main"}
        change, fields = scene.pick(
            ("map", {**about, "event_type": "login"}),
            ("producer", {**about, "producer": ALICE}),
            ("withdraw", {**about, "producer": ALICE}),
            ("retention", {**about, "retention_sec": 3600}),
            ("rename", {**about, "to": (IDS[0],), "to_names": ("new",)}),
            ("checkpoint", {"every_sec": 60}),
            ("payload", {"max_payload": 1000}),
        )
        draft = recorder_config.change(change, ts=scene.now, **fields)
        draft = _damage_text(draft, change=scene.pick(*recorder_config.CHANGES)) if scene.chance(8) else draft
        return Step(draft, KEYS["service"] if not scene.chance(6) else scene.person(), CHANGES)
    if kind < 4:
        key = scene.person()
        draft = recorder_events.event(
            subject_id="user:1",
            principal_id=key.public if not scene.chance(5) else BOB,
            event_type=scene.pick("login", "logout"),
            event_time=scene.now,
            origin="app",
            payload=scene.pick(None, {"ip": "192.0.2.1"}),
        )
        draft = _damage_text(draft, **scene.pick({"origin": ""}, {"event_time": 2**60})) if scene.chance(8) else draft
        return Step(draft, key, MAIN)
    head = recorder_checkpoint.StreamHead(
        stream_id=MAIN, label=IDS[0], epoch=0, last_seq=0, mmr_root=recorder_checkpoint.EMPTY_ROOT, checkpoint=b""
    )
    draft = recorder_checkpoint.checkpoint(
        [head], hub_id=IDS[1], hub_pk=KEYS["hub"].public, profile_id=IDS[2], sdr_profile_id=IDS[2], ts=scene.now
    )
    draft = _damage_text(draft, log_root=IDS[0]) if scene.chance(5) else draft
    return Step(draft, KEYS["service"], CHECKPOINTS)


def read_recorder(settings: Any, events: Sequence[Event], policy: str) -> Reading:
    """Return the configuration after the history, with faults of changes, events and checkpoints (products §3)."""
    ordered = sorted(events, key=lambda event: event.order)
    history = recorder_config.history_of(
        [event for event in ordered if event.stream_id == CHANGES], unhex(settings)["admins"]
    )
    issues = list(history.issues)
    for event in ordered:
        if event.hdr.schema == recorder_events.EVENT.id:
            typed: Any = recorder_events.read(event)
        elif event.hdr.schema == recorder_checkpoint.CHECKPOINT.id:
            typed = decode(event, recorder_checkpoint.CHECKPOINT)
        else:
            continue
        issues += [typed] if isinstance(typed, Issue) else []
    state = cbor.encode(cbor.sort_keys(history.now.to_tree()))
    return Reading("sdr/profile", state, _places(sorted(issues)), history.now)


def write_airgap(scene: Scene) -> Step:
    leaf, seq = scene.pick(*IDS), 1 + scene.number(2)
    receipt = Receipt.issue(
        KEYS["issuer"], label=H(b"origin"), stream_seq=seq, leaf_hash=leaf, mmr_root=H(leaf), hub_ts=scene.now - 900
    )
    common: dict[str, Any] = {
        "origin_stream_id": MAIN,
        "origin_epoch": 0,
        "origin_hub_id": IDS[2],
        "bundle_id": IDS[1],
        "position": scene.number(3),
        "import_time": scene.now,
        "bridge_id": BRIDGE,
    }
    parent = leaf if not scene.chance(6) else MAIN
    if scene.chance(3):
        body: Any = airgap.WithheldEvent(**common, origin_receipt=receipt.to_bytes(), reason="secret")
        draft = airgap.WITHHELD.draft(body, parent_id=parent)
    else:
        inner = kv.put("a", scene.number(9))
        body = airgap.ImportedEvent(
            **common,
            origin_schema=inner.schema,
            origin_header=cbor.encode({1: inner.schema}),
            origin_body=inner.body,
            origin_digest=H(inner.body),
            origin_sig=KEYS["alice"].sign(H(inner.body)),
            origin_msg_id=leaf,
            origin_client=ALICE,
            origin_receipt=receipt.to_bytes(),
        )
        draft = airgap.IMPORT.draft(body, parent_id=parent)
        draft = _damage_text(draft, origin_msg_id=bytes(32)) if scene.chance(8) else draft
    return Step(draft, KEYS["bridge"], MAIN)


def read_airgap(settings: Any, events: Sequence[Event], policy: str) -> Reading:
    """Entries of the other zone, in logical order: [label, stream_seq, msg_id, True if it was withheld]."""
    rows: list[cbor.Item] = []
    issues: list[Issue] = []
    for event in sorted(events, key=lambda event: event.order):
        crossed = airgap.read_crossed(event)
        if isinstance(crossed, Issue):
            issues.append(crossed)
        elif crossed is not None:
            receipt = crossed.body.receipt
            is_withheld = isinstance(crossed.body, airgap.WithheldEvent)
            rows.append([receipt.label, receipt.stream_seq, receipt.leaf_hash, is_withheld])
    return Reading("veen/state-airgap.crossed", cbor.encode(rows), _places(sorted(issues)), rows)


# --- all of them ------------------------------------------------------------------------------------------------

_BRIDGED: Final[tuple[dict[str, Any], ...]] = ({}, {"bridges": [BRIDGE.hex()]})
_EMITTERS: Final = ({"emitters": [SERVICE.hex()]}, {"any_emitter": True})
_CAPS: Final = {"caps": CAPS_SETTING}

SUBJECTS: Final = (
    Subject("kv", write_kv, _by_fold(kv.KvFold), _BRIDGED),
    Subject("crud", write_crud, _by_fold(crud.CrudFold), _BRIDGED),
    Subject("queue", write_queue, _by_fold(queue.QueueFold), (*_BRIDGED, {"groups": ["a", "b"]})),
    Subject("crdt.lww", write_lww, _by_fold(crdt.LwwFold)),
    Subject("crdt.orset", write_orset, _by_fold(crdt.OrSetFold)),
    Subject("crdt.gcnt", write_counter, _by_fold(crdt.CounterFold)),
    Subject("rpc", write_rpc, _by_fold(rpc.RpcFold)),
    Subject(
        "id",
        write_id,
        _by_fold(IdFold, LetterIdFold),
        _BRIDGED,
        has_letter=True,
        quarter=6,
        scripts=(script_dated_ahead,),
    ),
    Subject(
        "wallet",
        write_wallet,
        _by_fold(fold_wallets(LedgerFold), fold_wallets(LetterLedgerFold)),
        (*_BRIDGED, {"institution": [SERVICE.hex()], "currencies": ["EUR"]}, {"owners": OWNERS}),
        has_letter=True,
        quarter=8,
        shortest=5,
        longest=8,
        scripts=WALLET_SCRIPTS,
    ),
    Subject("speaks", write_speaks, _by_fold(speaks.SpeaksFold), quarter=4),
    Subject("realm", write_realm, _by_fold(realm.RealmFold), _EMITTERS, quarter=4),
    Subject("label.class", write_class, _by_fold(label_class.LabelClassFold), _EMITTERS),
    Subject("schema.registry", write_schema, _by_fold(schema_registry.SchemaRegistryFold), _EMITTERS),
    Subject("anchor", write_anchor, _by_fold(anchoring.AnchorFold)),
    Subject("state.checkpoint", write_state, _by_fold(state_checkpoint.StateCheckpointFold)),
    Subject("discovery", write_discovery, _by_fold(fold_discovery), ({}, {"publishers": [SERVICE.hex()]})),
    Subject(
        "operation.paid",
        _or_binding(write_paid_or_delegated),
        _by_fold(_with_caps(paid.PaidFold)),
        ({"issuing": [account_id_of(ALICE).hex()], "default": "c", **_CAPS},),
        quarter=4,
    ),
    Subject(
        "operation.access",
        _or_binding(write_access),
        _by_fold(access.AccessFold),
        ({"granters": [ALICE.hex()]}, {"granters": [PRINCIPALS[0].public.hex(), BOB.hex()]}),
        quarter=4,
    ),
    Subject(
        "operation.delegated", _or_binding(write_delegated), _by_fold(_with_caps(delegation.DelegationFold)), (_CAPS,)
    ),
    Subject("operation.agreement", _or_binding(write_agreement), _by_fold(agreement.AgreementFold), quarter=4),
    Subject("operation.publication", _or_binding(write_publication), _by_fold(publication.PublicationFold), quarter=4),
    Subject(
        "operation.recovery",
        _or_binding(write_recovery),
        _by_fold(fold_recovery),
        (
            {"guardians": [ALICE.hex(), BOB.hex()], "threshold": 1, "executors": None},
            {"guardians": [ALICE.hex(), BOB.hex()], "threshold": 2, "executors": [ALICE.hex()]},
        ),
        quarter=4,
    ),
    Subject("operation.queryaudit", write_audit, _by_fold(queryaudit.make_fold), ({"services": [SERVICE.hex()]}, {})),
    Subject("operation.mirror", write_mirror, _by_fold(mirror.MirrorFold), ({"authors": [SERVICE.hex()]}, {})),
    Subject("recorder", write_recorder, read_recorder, ({"admins": [SERVICE.hex()]},)),
    Subject("airgap", write_airgap, read_airgap),
)
