"""D-186 for folds in Python: without named emitters the owner of a stream speaks for a realm, and nobody else."""

import inspect

import pytest
from tests.client.hubs import client_at, hub_at, person, pin_of, run

from veen.client.generations import owning
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.transport.inprocess import InProcess
from veen.lake import folds
from veen.lake.log.errors import OptionError
from veen.overlays.federation import realm
from veen.overlays.federation.realm import RealmFold, admin_streams
from veen.overlays.framework.link import send
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.naming.label_class import LabelClassFold
from veen.overlays.naming.schema_registry import SchemaRegistryFold

STREAM = admin_streams().revocation
OWNER, BOB = person("owner"), person("bob")
KEYS = StreamKeys.create(f"hex:{STREAM.hex()}")
OWNED = Keyring().with_keys(KEYS).with_owner(KEYS, OWNER.id_sign_pk)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The owner revokes 1, and somebody who may write to the stream revokes the owner."""
    tmp_path = tmp_path_factory.mktemp("owners")

    async def scenario():
        async with hub_at(tmp_path / "hub") as hub:
            for who, target in ((OWNER, b"1" * 32), (BOB, OWNER.client_id)):
                at = client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / who.name, ring=OWNED)
                async with at as client:
                    if who is OWNER:
                        await owning.announce_card(client, who, KEYS.stream_id)
                    await send(client, KEYS.stream_id, realm.revoke("client-id", target, ts=1))

    run(scenario())
    return str(tmp_path / "hub")


def targets(result):
    return sorted(record.target for record in result.fold.view(result.summary).revocations)


def test_without_emitters_the_records_of_the_owner_count(log):
    owner, everybody = [b"1" * 32], sorted([b"1" * 32, OWNER.client_id])
    result = folds.run(log, "realm", keys=OWNED, engine="python")
    assert targets(result) == owner
    assert [issue.code for issue in result.issues] == ["REALM.EMITTER"]
    assert targets(folds.run(log, RealmFold(any_emitter=True), keys=OWNED, engine="python")) == everybody
    by_bob = folds.run(log, RealmFold(emitters=[BOB.client_id]), keys=OWNED, engine="python")
    assert targets(by_bob) == [OWNER.client_id]


def test_a_stream_whose_owner_nobody_knows_and_rows_without_keys_are_refused(log):
    with pytest.raises(OptionError, match="any_emitter"):
        folds.run(log, "realm", keys=Keyring().with_keys(KEYS), engine="python")
    with pytest.raises(OptionError, match="any_emitter"):
        folds.run([], "realm", engine="python")


@pytest.mark.parametrize("fold", [RealmFold, LabelClassFold, SchemaRegistryFold])
def test_a_fold_that_was_told_nobody_counts_nobody(fold):
    bare = fold()
    assert bare.unowned_streams
    assert not any(bare.may_emit(stream, b"x" * 32) for stream in bare.unowned_streams)
    assert fold(any_emitter=True).may_emit(STREAM, b"x" * 32)
    assert bare.semantics() != fold(any_emitter=True).semantics()
    owned = bare.with_emitters({stream: [b"x" * 32] for stream in bare.unowned_streams})
    assert owned.unowned_streams == ()
    assert all(owned.may_emit(stream, b"x" * 32) for stream in bare.unowned_streams)
    assert not bare.may_emit(bare.unowned_streams[0], b"x" * 32)  # the fold itself did not change
    with pytest.raises(ValueError, match="one of"):
        fold(emitters=[], any_emitter=True)


def test_every_fold_that_takes_emitters_has_the_rule():
    """A new fold of policy cannot leave it out."""
    taking = {name for name, make in BUILTIN.folds.items() if "emitters" in inspect.signature(make).parameters}
    assert taking == {"realm", "label.class", "schema.registry"}
