"""Client keys that have reached a bound of KEX1+ are replaced by the commands themselves."""

import time
from dataclasses import replace

from tests.cli.talk import Talk

from veen.client.home import Home
from veen.client.identity.keystore import open_identity
from veen.client.identity.rotation import MAX_LIFETIME_SEC, MAX_MSGS_PER_LABEL, RotationBounds, rotate_at_bounds
from veen.client.state import StateStore


def keystore_of(talk):
    return open_identity(Home.at(talk.root), "alice", None)


def aged(talk, seconds):
    """Make the client key of Alice older."""
    keystore = keystore_of(talk)
    identity = keystore.identity
    key = replace(identity.client_key, created_at=int(time.time()) - seconds)
    keystore.save(replace(keystore.secrets, identity=replace(identity, client_keys=(*identity.client_keys[:-1], key))))
    return identity.client_id


def test_a_command_goes_on_with_a_new_key_when_the_old_one_has_signed_for_a_day(talk: Talk):
    talk.run("id", "keyring", "new", "orders")
    talk.run("send", "orders", "one")
    before = aged(talk, MAX_LIFETIME_SEC)
    done = talk.run("send", "orders", "two")
    assert "max_client_id_lifetime_sec" in done.stderr
    identity = keystore_of(talk).identity
    assert identity.client_id != before
    assert identity.client_key_of(before) is not None  # retired, and still known as our own
    talk.run("send", "orders", "three")
    assert keystore_of(talk).identity.client_id == identity.client_id
    assert len({entry["client_id"] for entry in talk.entries("orders")}) == 2


def test_a_key_is_replaced_after_so_many_messages_of_one_label(talk: Talk):
    talk.run("id", "keyring", "new", "counted")  # other tests write to orders of this hub
    for number in range(3):
        talk.run("send", "counted", f"{number}")
    keystore, home, now = keystore_of(talk), Home.at(talk.root), int(time.time())
    before = keystore.identity.client_id
    assert rotate_at_bounds(home, keystore, now, RotationBounds(max_msgs_per_client_id_per_label=4)) is None
    reason = rotate_at_bounds(home, keystore, now, RotationBounds(max_msgs_per_client_id_per_label=3))
    assert reason is not None
    assert reason.value == "max_msgs_per_client_id_per_label"
    assert keystore_of(talk).identity.client_id != before
    with StateStore.open(home, "alice") as store:
        assert max(store.counts(before).values()) == 3
    assert MAX_MSGS_PER_LABEL == 65_536
