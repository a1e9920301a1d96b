"""Client keys that have reached a bound of KEX1+ are replaced by the commands themselves."""

import time
from dataclasses import replace

from tests.cli.talk import Talk

from veen.client.home import Home
from veen.client.identity.keystore import open_identity
from veen.client.identity.rotation import MAX_LIFETIME_SEC


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
    assert "was replaced by a new one" in done.stderr
    identity = keystore_of(talk).identity
    assert identity.client_id != before
    assert identity.client_key_of(before) is not None  # retired, and still known as our own
    talk.run("send", "orders", "three")
    assert keystore_of(talk).identity.client_id == identity.client_id
    assert len({entry["client_id"] for entry in talk.entries("orders")}) == 2
