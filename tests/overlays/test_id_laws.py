"""ID keeps the laws of folds, in merged streams through the shared suite and in its own streams here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.id_builders import APP, BRIDGE, DH, SHOP, IdLog, key

from veen.core.hashing import H
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.state import state_bytes
from veen.overlays.id import drafts
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, device_id_of, group_id_of, org_id_of, scoped_org_id_of
from veen.testing.laws import BRIDGE as BRIDGE_NAME
from veen.testing.laws import check_laws, outcome

pytestmark = pytest.mark.long

HUB = H(b"the hub of the originals")
PRINCIPALS = [key("p0").public, key("p1").public]
DEVICES = [key("d0").public, key("d1").public]
REALMS = [APP, SHOP]
ACCOUNTS = [ctx_id_of(principal_pk, realm_id) for principal_pk in PRINCIPALS for realm_id in REALMS]
ORG = org_id_of(key("org").public)
ORGS = [ORG, scoped_org_id_of(ORG, APP)]
GROUP_NAMES = ["eng", "ops"]

TIMES = st.integers(995, 1_010)
EXPIRY = st.none() | st.integers(1_000, 1_030)
MAPS = st.none() | st.dictionaries(st.sampled_from(["b", "a"]), st.integers(0, 2), max_size=2)
NAMES = st.none() | st.sampled_from(["Ann", "Bob"])


def pick(draw, options):
    return draw(st.sampled_from(options))


def message(draw):
    """The next message of a random history; few identities, so that they meet."""
    ts = draw(TIMES)
    match draw(st.integers(0, 10)):
        case 0:
            return drafts.principal(pick(draw, PRINCIPALS), created_at=ts, info=draw(MAPS))
        case 1:
            return drafts.device(
                pick(draw, PRINCIPALS),
                device_pk=pick(draw, DEVICES),
                dh_pk=DH,
                created_at=ts,
                expires_at=draw(EXPIRY),
                disabled=draw(st.none() | st.booleans()),
            )
        case 2:
            realm_id = pick(draw, REALMS)
            return drafts.ctx_profile(
                ctx_id_of(pick(draw, PRINCIPALS), realm_id),
                realm_id,
                updated_at=ts,
                display_name=draw(NAMES),
                prefs=draw(MAPS),
            )
        case 3:
            return drafts.org_profile(
                pick(draw, ORGS), created_at=1, updated_at=ts, display_name=draw(NAMES), metadata=draw(MAPS)
            )
        case 4 | 5:
            return drafts.change_group(
                pick(draw, ORGS),
                pick(draw, GROUP_NAMES),
                name=draw(NAMES),
                realm_id=draw(st.none() | st.just(APP)),
                add=draw(st.lists(st.sampled_from(ACCOUNTS), max_size=2)),
                remove=draw(st.lists(st.sampled_from(ACCOUNTS), max_size=2)),
                updated_at=ts,
                expires_at=draw(EXPIRY),
            )
        case 6:
            org_id = pick(draw, ORGS)
            return drafts.bind_role(
                org_id,
                pick(draw, ["admin", "reader"]),
                realm_id=draw(st.none() | st.just(APP)),
                ctx=draw(st.lists(st.sampled_from(ACCOUNTS), max_size=2)),
                groups=[group_id_of(org_id, pick(draw, GROUP_NAMES))],
                ts=ts,
                expires_at=draw(EXPIRY),
            )
        case 7:
            return drafts.handle(
                pick(draw, REALMS),
                pick(draw, ["@a", "b@example.com"]),
                target_type="ctx",
                target_id=pick(draw, ACCOUNTS),
                ts=ts,
                expires_at=draw(EXPIRY),
            )
        case 8:
            return drafts.external_link(
                APP,
                ctx_id=pick(draw, ACCOUNTS[::2]),
                provider="corp",
                external_sub=pick(draw, ["1", "2"]),
                attributes=draw(MAPS),
                ts=ts,
            )
        case 9:
            return drafts.revoke_by_org(
                ORG, device_id=draw(st.none() | st.just(device_id_of(DEVICES[0]))), ctx_id=pick(draw, ACCOUNTS), ts=ts
            )
        case _:
            return drafts.revoke_by_principal(
                pick(draw, PRINCIPALS),
                device_id=device_id_of(pick(draw, DEVICES)),
                auth_ref=draw(st.none() | st.just(H(b"token"))),
                ctx_id=draw(st.none() | st.sampled_from(ACCOUNTS)),
                realm_id=draw(st.none() | st.sampled_from(REALMS)),
                ts=ts,
            )


def write(draw, log):
    """A history for the shared suite, which knows streams by name."""
    return message(draw).draft


def merged_fold(**kwargs):
    return IdFold(merged=[H(name.encode()) for name in ("north", "south", "east", "west")], **kwargs)


@pytest.mark.req("OVL-01", "OVL-02", "OVL-05", "OVL-06", "OVL-07")
@examples(150)
@given(data=st.data())
def test_identity_in_merged_streams_keeps_the_laws(data):
    """001 ID §4.1: streams may be merged as long as folding stays deterministic."""
    check_laws(data, merged_fold, write)


@pytest.mark.req("ID-26")
@examples(150)
@given(data=st.data())
def test_the_union_of_two_hubs_is_the_same_however_it_is_read(data):
    """001 ID §12.1: union of the events of all trusted hubs, each once, in an order that does not depend on the hub."""
    log = IdLog()
    originals = [
        log.send(message(data.draw), ts=1_000 + data.draw(st.integers(0, 10)), hub=data.draw(st.sampled_from("ab")))
        for _ in range(data.draw(st.integers(0, 12)))
    ]
    fold = IdFold(mirrors=Mirrors.by([BRIDGE]))
    expected = state_bytes(fold.view(fold.summarize(log.events), 1_005))
    copied = data.draw(st.lists(st.sampled_from(originals), max_size=6)) if originals else []
    for event in copied:
        copy = log.send(drafts.mirrored(event), ts=2_000, hub="c", client=BRIDGE_NAME)
        assert (copy.hdr.schema, copy.body, copy.hdr.parent_id) == (event.hdr.schema, event.body, event.msg_id)
        assert copy.stream_id == event.stream_id
    shuffled = data.draw(st.permutations(log.events))
    cut = data.draw(st.integers(0, len(shuffled)))
    both = fold.merge(fold.summarize(shuffled[cut:]), fold.summarize(shuffled[:cut]))
    assert state_bytes(fold.view(both, 1_005)) == expected
    assert outcome(fold, both) == outcome(fold, fold.summarize(log.events))


@pytest.mark.req("ID-26")
@examples(60)
@given(data=st.data())
def test_a_reader_of_the_mirror_alone_holds_the_same_identities(data):
    """Copies keep the order of their originals, so LWW, membership and revocation come out alike."""
    log, mirror = IdLog(), IdLog()
    for index in range(data.draw(st.integers(0, 10))):
        log.send(message(data.draw), ts=1_000 + index)
    for index, event in enumerate(log.events):
        mirror.send(drafts.mirrored(event, HUB), ts=2_000 + index, hub="b", client=BRIDGE_NAME)
    check_alike(log, mirror)


@pytest.mark.req("ID-26")
def test_a_handle_dated_ahead_is_the_same_in_a_mirror():
    """Ts 1001 under hub time 1000, then ts 1000 under hub time 1001. The second one wins at the
    original, where 1001 is capped to 1000; a mirror that capped by its own hub's time kept the first one."""
    log, mirror, plain = IdLog(), IdLog(), IdLog()
    for index, (account, ts) in enumerate(zip(ACCOUNTS, (1_001, 1_000), strict=False)):
        log.send(drafts.handle(APP, "@a", target_type="ctx", target_id=account, ts=ts), ts=1_000 + index)
    for index, event in enumerate(log.events):
        copy = mirror.send(drafts.mirrored(event, HUB), ts=2_000 + index, hub="b", client=BRIDGE_NAME)
        assert (copy.hdr.schema, copy.body, copy.hdr.parent_id) == (event.hdr.schema, event.body, event.msg_id)
        plain.send(drafts.mirrored(event), ts=2_000 + index, hub="b", client=BRIDGE_NAME)
    targets = [handle.target_id for handle in log.state(1_500).handles.values()]
    assert targets == [ACCOUNTS[1]]
    check_alike(log, mirror)
    stranger = mirror.state(1_500, mirrors=Mirrors.by([H(b"another bridge")]))
    assert [handle.target_id for handle in stranger.handles.values()] == [ACCOUNTS[0]]  # only a bridge is believed
    earlier = plain.state(1_500, mirrors=Mirrors.by([BRIDGE]))
    assert [handle.target_id for handle in earlier.handles.values()] == [ACCOUNTS[0]]  # copies of before fold as before


def check_alike(log, mirror):
    here, there = log.state(1_500), mirror.state(1_500, mirrors=Mirrors.by([BRIDGE]))
    for name in ("devices", "contexts", "orgs", "groups", "roles", "handles"):
        left, right = getattr(here, name), getattr(there, name)
        assert left.keys() == right.keys()
    assert {k: g.members for k, g in here.groups.items()} == {k: g.members for k, g in there.groups.items()}
    assert here.roles == there.roles
    assert {k: (h.target_id, h.until) for k, h in here.handles.items()} == {
        k: (h.target_id, h.until) for k, h in there.handles.items()
    }
    assert {k: d.status(1_500) for k, d in here.devices.items()} == {
        k: d.status(1_500) for k, d in there.devices.items()
    }
