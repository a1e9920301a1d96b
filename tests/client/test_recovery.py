"""Recovery secrets: a key or a second passphrase opens a keystore whose passphrase is lost."""

import contextlib
import random
from dataclasses import replace

import pytest
from tests.client.builders import CHEAP, PASSPHRASE, seeded
from tests.client.test_keystore import SECRETS, created, file, rewritten

from veen.client.errors import KeystoreDamaged, KeyTextInvalid, LocalError, WrongPassphrase
from veen.client.identity.keystore import MAX_SLOTS, Keystore, RecoverySlot, SealedKeystore
from veen.core.errors import FieldSizeError
from veen.testing.memfs import Crash, Fault, MemFs

SECOND = "a second passphrase, quite another"


def with_key():
    """Return the files, the keystore, and the text of its recovery key."""
    fs, keystore = created()
    slot, text = keystore.make_recovery_key()
    keystore.add_recovery(slot)
    return fs, keystore, text


def test_a_recovery_key_opens_what_the_passphrase_opens():
    fs, _, text = with_key()
    assert Keystore.recover(fs, text).secrets == Keystore.open(fs, PASSPHRASE).secrets == SECRETS
    assert Keystore.recover(fs, f" {text.upper()}\n").secrets == SECRETS


def test_a_second_passphrase_recovers_and_opens_nothing_else():
    fs, keystore = created()
    keystore.add_recovery(keystore.make_recovery_passphrase(SECOND, kdf=CHEAP))
    assert Keystore.recover(fs, SECOND).secrets == SECRETS
    with pytest.raises(WrongPassphrase):
        Keystore.open(fs, SECOND)
    with pytest.raises(WrongPassphrase):
        Keystore.recover(fs, PASSPHRASE)  # the first one is no recovery secret


def test_the_passphrase_itself_is_no_second_one():
    fs, keystore = created()
    with pytest.raises(LocalError, match="choose another"):
        keystore.make_recovery_passphrase(PASSPHRASE, kdf=CHEAP)
    assert Keystore.open(fs, PASSPHRASE).recoveries == ()


def test_a_recovery_secret_outlives_a_new_passphrase_and_a_new_client_key():
    fs, keystore, text = with_key()
    keystore.add_recovery(keystore.make_recovery_passphrase(SECOND, kdf=CHEAP))
    keystore.change_passphrase("entirely other words here", kdf=CHEAP)
    identity = keystore.rotate(2_000_000_000)
    assert Keystore.recover(fs, text).identity == Keystore.recover(fs, SECOND).identity == identity
    recovered = Keystore.recover(fs, text)
    recovered.change_passphrase("and now these words", kdf=CHEAP)
    assert Keystore.open(fs, "and now these words").identity == identity
    with pytest.raises(WrongPassphrase):
        Keystore.open(fs, "entirely other words here")


def test_a_removed_secret_opens_neither_the_file_nor_the_key_of_an_old_copy():
    """Whoever has the secret and an old copy knows the root key of that time: it must open nothing new."""
    fs, keystore, text = with_key()
    keystore.add_recovery(keystore.make_recovery_passphrase(SECOND, kdf=CHEAP))
    old_root = Keystore.recover(fs, text).unlock_key
    keystore.remove_recovery(keystore.recoveries[0].id, PASSPHRASE, kdf=CHEAP)
    with pytest.raises(WrongPassphrase):
        Keystore.recover(fs, text)
    with pytest.raises(WrongPassphrase):
        Keystore.open(fs, None, key=old_root)
    assert Keystore.recover(fs, SECOND).secrets == Keystore.open(fs, PASSPHRASE).secrets == SECRETS


def test_nobody_adds_a_secret_without_the_passphrase():
    """The next change of the passphrase would seal the new key to whoever wrote a slot into the file."""
    fs, keystore = created()
    stranger, text = RecoverySlot.for_key(bytes(32), keystore.salt, seeded("stranger"))
    forged = rewritten(file(fs), recovery=(stranger,))
    with pytest.raises(KeystoreDamaged):
        Keystore.open(forged, PASSPHRASE)
    with pytest.raises(WrongPassphrase):
        Keystore.recover(forged, text)


@pytest.mark.parametrize("field", ["pk", "enc", "box", "salt"])
def test_an_altered_slot_opens_nothing(field):
    fs, keystore, text = with_key()
    (slot,) = keystore.recoveries
    value = getattr(slot, field)
    altered = rewritten(file(fs), recovery=(replace(slot, **{field: bytes([value[0] ^ 1]) + value[1:]}),))
    with pytest.raises((WrongPassphrase, KeystoreDamaged)):
        Keystore.recover(altered, text)
    with pytest.raises(KeystoreDamaged):
        Keystore.open(altered, PASSPHRASE)


def test_a_hostile_slot_cannot_make_us_allocate():
    fs, keystore = created()
    keystore.add_recovery(keystore.make_recovery_passphrase(SECOND, kdf=CHEAP))
    (slot,) = keystore.recoveries
    with pytest.raises(KeystoreDamaged, match="argon2id"):
        Keystore.recover(rewritten(file(fs), recovery=(replace(slot, memory_kib=2**40),)), SECOND)
    with pytest.raises(FieldSizeError):
        SealedKeystore.from_bytes(replace(file(fs), recovery=(slot,) * (MAX_SLOTS + 1)).to_bytes())


def test_a_mistyped_key_is_told_from_a_wrong_one():
    fs, _, text = with_key()
    with pytest.raises(KeyTextInvalid, match="checksum"):
        Keystore.recover(fs, text[:-1] + ("q" if text[-1] != "q" else "p"))
    _, _, other = with_key()
    assert other == text  # the builder is seeded: another key comes from other randomness
    _, foreign = RecoverySlot.for_key(bytes(32), bytes(16), seeded("foreign"))
    with pytest.raises(WrongPassphrase):
        Keystore.recover(fs, foreign)


def test_a_keystore_without_slots_has_the_bytes_that_it_always_had():
    """Older releases read it; they refuse one with slots."""
    fs, _ = created()
    assert 10 not in file(fs).to_tree()


def test_the_number_of_secrets_is_bounded_and_a_plain_keystore_takes_none():
    fs, keystore, _ = with_key()
    for _ in range(MAX_SLOTS - 1):
        keystore.add_recovery(keystore.make_recovery_key()[0])
    with pytest.raises(LocalError, match="remove one"):
        keystore.add_recovery(keystore.make_recovery_key()[0])
    assert len(Keystore.open(fs, PASSPHRASE).recoveries) == MAX_SLOTS
    _, plain = created(passphrase=None)
    with pytest.raises(LocalError, match="no passphrase"):
        plain.add_recovery(plain.make_recovery_key()[0])


def test_taking_the_passphrase_away_takes_the_recovery_secrets_away():
    fs, keystore, _ = with_key()
    keystore.change_passphrase(None)
    assert file(fs).recovery == ()


@pytest.mark.parametrize("action", ["add", "change", "remove"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_crash_leaves_the_old_file_or_the_new_one(at, action):
    fs, _, text = with_key()
    disk = MemFs(fs.files(), fault=Fault(at=at, kind="lost"))
    with contextlib.suppress(Crash, OSError):
        keystore = Keystore.open(disk, PASSPHRASE)
        if action == "add":
            keystore.add_recovery(keystore.make_recovery_key()[0])
        elif action == "change":
            keystore.change_passphrase("entirely other words here", kdf=CHEAP)
        else:
            keystore.remove_recovery(keystore.recoveries[0].id, PASSPHRASE, kdf=CHEAP)
    left = disk.after_crash(random.Random(at))
    if file(left).recovery:
        assert Keystore.recover(left, text).secrets == SECRETS
    else:
        assert action == "remove"
        assert Keystore.open(left, PASSPHRASE).secrets == SECRETS
