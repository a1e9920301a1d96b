"""Authority and revocation records of a realm: 001 spec-2 §1.3, §2, §4.3, §4.4."""

import time
from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest
from tests.client.builders import CHEAP
from tests.client.hubs import client_at, hub_at, person, pin_of, run

from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import create_identity, open_identity
from veen.client.identity.revocation import Discarded, discard_revoked
from veen.client.send.captokens import TokenStore, issue
from veen.client.transport.inprocess import InProcess
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.policies import Authority, Revocation, realm_id_of
from veen.overlays.federation import realm
from veen.overlays.federation.realm import DEFAULT_REALM, RealmFold, admin_streams
from veen.overlays.framework.link import send
from veen.testing.events import FakeLog

STREAMS = admin_streams()
ADMIN, STRANGER = H(b"admin"), H(b"stranger")
A, B = b"\x0a" * 32, b"\x0b" * 32
GIVEN = Authority(
    realm_id=DEFAULT_REALM,
    stream_id=H(b"orders"),
    primary_hub=B,
    replica_hubs=(A,),
    policy="single-primary",
    ts=100,
    ttl=50,
)


class Log(FakeLog):
    """A fake log whose streams are given by id."""

    def say(self, draft, stream_id, client="admin"):
        event = replace(self.append(draft, stream=stream_id.hex(), client=client), stream_id=stream_id)
        self.by_label[event.label][-1] = event
        return event


def folded(log, **options):
    fold = RealmFold(any_emitter="emitters" not in options, **options)
    summary = fold.summarize(log.all())
    return fold.view(summary), [issue.code for issue in fold.issues(summary)]


@pytest.mark.req("FED-04", "FED-07")
def test_a_realm_has_four_admin_streams_and_deployments_without_realms_share_one():
    """§1.3"""
    realm_id = realm_id_of("acme")
    tags = [b"veen/admin", b"veen/revocation", b"veen/label-class", b"veen/meta-schema"]
    assert list(admin_streams(realm_id)) == [sha256(tag + b"\x00" + realm_id).digest() for tag in tags]
    assert admin_streams() == admin_streams(realm_id_of("default"))
    assert len({*admin_streams(), *admin_streams(realm_id)}) == 8


@pytest.mark.req("FED-01", "KEX1-06")
def test_bodies_have_the_keys_of_the_document_in_its_order():
    assert realm.AUTHORITY.id == sha256(b"veen.fed.authority.v1").digest()
    assert realm.REVOCATION.id == sha256(b"veen.revocation.v1").digest()
    assert realm.assign(GIVEN).body == cbor2.dumps(
        {
            "realm_id": DEFAULT_REALM,
            "stream_id": H(b"orders"),
            "primary_hub": B,
            "replica_hubs": [A],
            "policy": "single-primary",
            "ts": 100,
            "ttl": 50,
        }
    )
    said = realm.revoke("auth-ref", A, ts=5, ttl=9, reason="lost").body
    assert said == cbor2.dumps({"kind": "auth-ref", "target": A, "reason": "lost", "ts": 5, "ttl": 9})
    assert realm.revoke("client-id", A, ts=5).body == cbor2.dumps({"kind": "client-id", "target": A, "ts": 5})


@pytest.mark.req("FED-04", "FED-05")
def test_a_record_counts_on_the_admin_stream_of_its_realm_and_from_those_who_may_speak_for_it():
    log = Log()
    log.say(realm.assign(GIVEN), STREAMS.fed_admin)
    log.say(realm.revoke("client-id", A, ts=5), STREAMS.revocation)
    good, issues = folded(log, emitters=[ADMIN])
    assert (good.authorities, issues) == ((GIVEN,), [])
    assert good.revocations == (Revocation(kind="client-id", target=A, ts=5),)
    earlier = replace(GIVEN, primary_hub=A, ts=99)
    log.say(realm.assign(earlier), STREAMS.fed_admin, client="stranger")
    log.say(realm.assign(earlier), STREAMS.revocation)
    log.say(realm.assign(earlier), H(b"orders"))
    log.say(realm.assign(replace(earlier, realm_id=A)), STREAMS.fed_admin)
    log.say(realm.revoke("client-id", B, ts=5), STREAMS.fed_admin)
    state, issues = folded(log, emitters=[ADMIN])
    assert state == good
    assert sorted(issues) == ["REALM.EMITTER", "REALM.REALM", "REALM.STREAM", "REALM.STREAM", "REALM.STREAM"]
    assert len(folded(log)[0].authorities) == 2  # without a list the writers of the stream are believed


@pytest.mark.req("FED-02", "FED-03", "FED-06", "KEX1-07")
def test_of_active_records_the_earliest_counts_and_what_ended_stays_in_history():
    log, stream = Log(), GIVEN.stream_id
    for record in (GIVEN, replace(GIVEN, primary_hub=A), replace(GIVEN, ts=120, primary_hub=A, ttl=100)):
        log.say(realm.assign(record), STREAMS.fed_admin)
    log.say(realm.revoke("client-id", A, ts=10, ttl=5), STREAMS.revocation)
    log.say(realm.revoke("client-id", A, ts=30), STREAMS.revocation)
    state, _ = folded(log)
    authorities = {at: state.authority(stream, at) for at in (99, 100, 149, 150, 219, 220)}
    assert authorities[99] is authorities[220] is None  # unspecified
    assert (
        authorities[100] == authorities[149] == replace(GIVEN, primary_hub=A)
    )  # of two with one ts, the smaller primary_hub
    assert authorities[150] == authorities[219] == replace(GIVEN, ts=120, primary_hub=A, ttl=100)
    assert state.authority(H(b"another"), 100) is None
    assert [at for at in range(40) if state.is_revoked("client-id", A, at)] == [*range(10, 15), *range(30, 40)]
    assert len(state.revocations) == 2


@pytest.mark.req("KEX1-09", "CAP-14")
def test_who_was_away_reads_the_revocations_and_drops_what_no_longer_counts(tmp_path):
    """§4.4: re-fetch, re-evaluate, discard; the key in use gives way to a new one, other tokens stay."""
    keys = StreamKeys.create(STREAMS.revocation.hex())
    ring, home, now = Keyring().with_keys(keys), Home.at(tmp_path / "home"), int(time.time())
    keystore = create_identity(home, "alice", "a passphrase", now=now, kdf=CHEAP)
    old, issuer = keystore.identity.client_id, SigningKey(b"\x11" * 32)
    tokens = TokenStore(home.tokens_fs("alice"))
    refs = [
        tokens.put(issue(issuer, subject.card(), ["orders"], ttl=ttl)).auth_ref
        for subject, ttl in ((keystore.identity, 100), (person("bob"), 200), (person("bob"), 300), (person("bob"), 400))
    ]
    by_hash = {token.auth_ref: H(token.token.to_bytes()) for token in tokens.all()}[refs[2]]

    async def administrate_and_return():
        async with hub_at(tmp_path / "hub") as hub:
            boss = client_at(InProcess(hub.api), pin_of(hub), person("boss"), tmp_path / "boss", ring=ring)
            async with boss as admin:
                for draft in (
                    realm.revoke("client-id", old, ts=now - 5, reason="laptop lost"),
                    realm.revoke("auth-ref", refs[1], ts=now - 5),
                    realm.revoke("cap-token", by_hash, ts=now - 5),
                    realm.revoke("auth-ref", refs[3], ts=now - 50, ttl=10),  # over already
                ):
                    await send(admin, keys.stream_id.hex(), draft)
            carol = client_at(InProcess(hub.api), pin_of(hub), person("carol"), tmp_path / "carol", ring=ring)
            async with carol as reader:
                fold = RealmFold(emitters=[admin.client_id])
                return fold.view(fold.summarize([e.event async for e in reader.read(keys.stream_id.hex())]))

    state = run(administrate_and_return())
    for kind, target in (("client-id", old), ("auth-ref", refs[1]), ("cap-token", by_hash)):
        assert state.is_revoked(kind, target, now)
    assert not state.is_revoked("auth-ref", refs[3], now)
    dropped = discard_revoked(state.revocations, keystore, tokens, now)
    assert dropped == Discarded(tuple(sorted(refs[:3])), (old,))
    assert [token.auth_ref for token in tokens.all()] == [refs[3]]
    again = open_identity(home, "alice", "a passphrase")
    assert again.identity.client_id != old
    assert again.identity.client_key_of(old) is None
    assert discard_revoked(state.revocations, again, tokens, now) == Discarded()
