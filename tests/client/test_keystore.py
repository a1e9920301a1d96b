"""keystore.enc: what opens it, what does not, and what a crash leaves of it."""

import random
import stat
import tracemalloc
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import CHEAP, NOW, PASSPHRASE, identity, killed, line, process, seeded
from tests.examples import examples, spread

from veen.client.errors import (
    IdentityExists,
    IdentityInUse,
    IdentityMissing,
    KeystoreDamaged,
    LocalError,
    OpenPermissions,
    WrongPassphrase,
)
from veen.client.home import CARD, KEYSTORE, Home
from veen.client.identity.identity import MAX_CLIENT_KEYS, ClientKey, PrekeySecret
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore, SealedKeystore, Secrets, create_identity, open_identity, read_card
from veen.client.identity.passphrases import Kdf
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import MalformedError
from veen.testing.memfs import Crash, Fault, MemFs

ALICE = identity()
SECRETS = Secrets(
    identity=ALICE,
    keyring=Keyring.of([StreamKeys.create("room", random=seeded("room"))]),
    prekeys=(PrekeySecret.create(ALICE, now=NOW, random=seeded("prekey")),),
)
RAW = (
    ALICE.id_sign.seed,
    ALICE.dh_sk,
    ALICE.client_key.key.seed,
    SECRETS.prekeys[0].sk,
    SECRETS.keyring.entries[0].secret(),
)


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_keystore_that_others_may_read_is_not_opened(tmp_path, mode, passphrase):
    """As ssh does, with a passphrase too: whoever may copy it may guess."""
    home = Home.at(tmp_path)
    create_identity(home, "alice", passphrase, now=NOW, kdf=CHEAP)
    path = home.identity_dir("alice") / KEYSTORE
    path.chmod(mode)
    with pytest.raises(OpenPermissions, match=f"mode {mode:04o}") as refused:
        open_identity(home, "alice", passphrase)
    assert (refused.value.code, refused.value.path) == ("E.LOCAL.PERMISSIONS", str(path))
    path.chmod(0o600)
    assert open_identity(home, "alice", passphrase).identity.name == "alice"


def created(passphrase=PASSPHRASE, kdf=CHEAP):
    fs = MemFs()
    return fs, Keystore.create(fs, SECRETS, passphrase, kdf=kdf, random=seeded("keystore"))


def file(fs):
    return SealedKeystore.from_bytes(fs.files()[KEYSTORE])


def rewritten(found, **changes):
    """The file as somebody writes it who knows the format: its checksum fits again."""
    changed = replace(found, **changes)
    return MemFs({KEYSTORE: replace(changed, checksum=changed.sum()).to_bytes()})


# --- open and shut ------------------------------------------------------------------------------------------


def test_the_right_passphrase_gives_the_secrets_back():
    fs, _ = created()
    opened = Keystore.open(fs, PASSPHRASE)
    assert opened.secrets == SECRETS
    assert opened.identity == ALICE
    assert read_card(fs) == ALICE.card()


def test_the_file_holds_no_secret_in_the_clear():
    fs, keystore = created()
    for content in fs.files().values():
        for secret in (*RAW, PASSPHRASE.encode()):
            assert secret not in content
    for secret in RAW:
        assert secret.hex() not in f"{keystore!r} {keystore.secrets!r} {SECRETS.prekeys!r}"
    assert keystore.file_bytes() == fs.files()[KEYSTORE]


@pytest.mark.parametrize("wrong", ["", "correct horse", PASSPHRASE.upper(), PASSPHRASE + " ", None, "\ud800"])
def test_a_wrong_passphrase_is_told_as_such(wrong):
    fs, _ = created()
    with pytest.raises(WrongPassphrase):
        Keystore.open(fs, wrong)


def test_the_same_letters_from_another_keyboard_are_the_same_passphrase():
    """Composed and decomposed é look the same, and are typed the same."""
    fs, _ = created("caf\u00e9")
    assert Keystore.open(fs, "cafe\u0301").secrets == SECRETS


def test_the_defaults_are_those_that_were_decided_and_work(monkeypatch):
    """UX: argon2id, 64 MiB, 3 passes."""
    for field in fields(Kdf):  # tests/conftest.py has cheaper ones
        monkeypatch.setitem(Kdf.__init__.__kwdefaults__, field.name, field.default)
    fs, _ = created(kdf=None)
    assert (file(fs).kdf, file(fs).memory_kib, file(fs).passes) == ("argon2id", 65_536, 3)
    assert Keystore.open(fs, PASSPHRASE).secrets == SECRETS


def test_every_save_has_a_nonce_of_its_own():
    fs, keystore = created()
    nonces = set()
    for _ in range(5):
        keystore.save(keystore.secrets)
        nonces.add(file(fs).nonce)
    assert len(nonces) == 5
    assert Keystore.open(fs, PASSPHRASE).secrets == SECRETS


def test_changing_the_passphrase_shuts_the_old_one_out():
    fs, keystore = created()
    salt = file(fs).salt
    keystore.change_passphrase("another", kdf=CHEAP)
    assert file(fs).salt != salt
    assert Keystore.open(fs, "another").secrets == SECRETS
    with pytest.raises(WrongPassphrase):
        Keystore.open(fs, PASSPHRASE)
    keystore.save(replace(SECRETS, prekeys=()))  # goes on under the new one
    assert Keystore.open(fs, "another").secrets.prekeys == ()


def test_the_plain_form_is_marked_and_must_be_asked_for():
    fs, keystore = created(None)
    assert file(fs).kdf == "none"
    assert keystore.is_plain
    assert Keystore.open(fs, None).secrets == SECRETS
    assert "plain" in repr(keystore)
    with pytest.raises(LocalError, match="empty passphrase"):
        created("")


def test_an_existing_keystore_is_never_overwritten_by_a_new_one():
    fs, _ = created()
    before = fs.files()
    with pytest.raises(IdentityExists, match="alice"):
        Keystore.create(fs, SECRETS, PASSPHRASE, kdf=CHEAP)
    assert fs.files() == before


def test_a_keystore_that_changed_since_it_was_opened_is_not_overwritten():
    """Two processes that read before one of them rotates: the second must not bring the old keys back."""
    fs, first = created()
    second = Keystore.open(fs, PASSPHRASE)
    rotated = second.rotate(NOW + 1)
    with pytest.raises(LocalError, match="open it again"):
        first.save(SECRETS)
    with pytest.raises(LocalError, match="open it again"):
        first.change_passphrase("mine", kdf=CHEAP)
    assert Keystore.open(fs, PASSPHRASE).identity == rotated


def test_rotation_lasts_and_brings_a_new_prekey_and_a_new_card():
    """KEX1+ 4.1: client_id and the corresponding prekeys."""
    fs, keystore = created()
    rotated = keystore.rotate(NOW + 86_400)
    opened = Keystore.open(fs, PASSPHRASE).secrets
    assert opened.identity == rotated
    assert opened.identity.client_key.generation == 2
    assert len(opened.prekeys) == 2
    assert read_card(fs).client_id == rotated.client_id != ALICE.client_id


def test_the_largest_keystore_can_be_read_again():
    key = SigningKey(bytes(32))
    many = tuple(ClientKey(key=key, created_at=NOW, generation=number) for number in range(1, MAX_CLIENT_KEYS + 1))
    ring = Keyring(
        tuple(StreamKeys(stream_id=number.to_bytes(32, "big"), reader_pk=bytes(32)) for number in range(4_096))
    )
    secrets = replace(SECRETS, identity=replace(ALICE, client_keys=many), keyring=ring, prekeys=SECRETS.prekeys * 1_024)
    fs = MemFs()
    Keystore.create(fs, secrets, PASSPHRASE, kdf=CHEAP)
    assert Keystore.open(fs, PASSPHRASE).secrets == secrets


# --- damage and malice --------------------------------------------------------------------------------------


@given(st.data())
@examples(300)
def test_any_flipped_bit_is_damage_and_never_a_wrong_passphrase(data):
    """An accident of the disk must not send anyone looking for another passphrase."""
    fs, _ = created()
    content = bytearray(fs.files()[KEYSTORE])
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(KeystoreDamaged):
        Keystore.open(MemFs({KEYSTORE: bytes(content)}), PASSPHRASE)


@given(st.data())
def test_a_cut_or_longer_file_is_damage(data):
    fs, _ = created()
    content = fs.files()[KEYSTORE]
    place = data.draw(st.integers(0, len(content) - 1))
    for damaged in (content[:place], content + content[place:]):
        with pytest.raises(KeystoreDamaged):
            Keystore.open(MemFs({KEYSTORE: damaged}), PASSPHRASE)


def test_a_file_altered_by_somebody_who_knows_the_format_is_still_caught():
    fs, _ = created()
    stored = file(fs)
    flipped = bytes((stored.sealed[0] ^ 1,)) + stored.sealed[1:]
    for changes in ({"sealed": flipped}, {"nonce": bytes(24)}, {"sealed": b""}, {"sealed": stored.sealed + b"x"}):
        with pytest.raises(KeystoreDamaged, match="the passphrase is right, but the file was altered"):
            Keystore.open(rewritten(stored, **changes), PASSPHRASE)
    for changes in ({"salt": bytes(16)}, {"key_check": bytes(16)}, {"passes": 2}, {"memory_kib": 9}):
        with pytest.raises(WrongPassphrase):  # all that can be known: this passphrase is not the key of this header
            Keystore.open(rewritten(stored, **changes), PASSPHRASE)
    with pytest.raises(KeystoreDamaged, match="does not know"):
        Keystore.open(rewritten(stored, kdf="md5"), PASSPHRASE)
    with pytest.raises(KeystoreDamaged):
        Keystore.open(rewritten(stored, kdf="none"), None)  # no way to strip the passphrase


@pytest.mark.parametrize(
    "asked",
    [
        {"memory_kib": 2**63},
        {"memory_kib": 2**64 - 1, "passes": 2**64 - 1},
        {"memory_kib": 4 * 1024 * 1024},
        {"memory_kib": Kdf.MAX_MEMORY_KIB + 1},
        {"memory_kib": 0},
        {"memory_kib": 7},
        {"passes": 0},
        {"passes": Kdf.MAX_PASSES + 1},
        {"passes": 2**32},
    ],
    ids=str,
)
def test_a_hostile_header_is_refused_before_anything_is_allocated(asked):
    fs, _ = created()
    hostile = rewritten(file(fs), **asked)
    tracemalloc.start()
    try:
        with pytest.raises(KeystoreDamaged, match="passes of argon2id"):
            Keystore.open(hostile, PASSPHRASE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_bounds_hold_for_writing_too():
    with pytest.raises(KeystoreDamaged):
        created(kdf=Kdf(memory_kib=Kdf.MAX_MEMORY_KIB + 1))


def test_a_huge_file_is_not_read():
    with pytest.raises(KeystoreDamaged, match="no keystore has more"):
        SealedKeystore.read(MemFs({KEYSTORE: bytes(5_000_000)}))


@pytest.mark.parametrize("name", [b"al/ce", b"al ce"])
def test_secrets_that_no_identity_can_have_are_refused(name):
    """Only who has the passphrase could seal them; they are named as damage all the same."""
    with pytest.raises(MalformedError, match="secrets"):
        Secrets.from_bytes(SECRETS.to_bytes().replace(b"alice", name, 1))


def test_a_missing_file_is_named():
    with pytest.raises(KeystoreDamaged, match="missing"):
        Keystore.open(MemFs(), PASSPHRASE)
    with pytest.raises(KeystoreDamaged, match=CARD):
        read_card(MemFs())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_keystore_or_damage(data):
    with pytest.raises(KeystoreDamaged):
        Keystore.open(MemFs({KEYSTORE: data}), PASSPHRASE)


# --- crashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", spread(["lost", "torn", "done", "error"], 8))
@pytest.mark.parametrize("at", range(1, 9))
def test_a_crash_at_any_step_leaves_a_keystore_that_opens(at, kind):
    """Create, rotate twice, change the passphrase: after each there is the state before or after, and nothing else."""
    fs = MemFs(fault=Fault(at=at, kind=kind))
    reached = 0
    try:
        keystore = Keystore.create(fs, SECRETS, PASSPHRASE, kdf=CHEAP)
        reached = 1
        keystore.rotate(NOW + 1)
        reached = 2
        keystore.rotate(NOW + 2)
        reached = 3
        keystore.change_passphrase("another", kdf=CHEAP)
    except (Crash, OSError):
        pass
    for seed in range(5):
        disk = fs.after_crash(random.Random(seed))
        if not disk.exists(KEYSTORE):
            assert reached == 0
            Keystore.create(disk, SECRETS, PASSPHRASE, kdf=CHEAP)  # and one can go on
            continue
        try:
            opened = Keystore.open(disk, PASSPHRASE)
        except WrongPassphrase:
            assert reached == 3
            opened = Keystore.open(disk, "another")
        assert reached <= opened.identity.client_key.generation <= reached + 1
        opened.write_card()
        assert read_card(disk) == opened.identity.card()


# --- in a home ----------------------------------------------------------------------------------------------


def test_an_identity_on_disk_is_for_its_owner_only(tmp_path):
    home = Home.at(tmp_path / "home")
    create_identity(home, "alice", PASSPHRASE, now=NOW, kdf=CHEAP)
    directory = home.identity_dir("alice")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / KEYSTORE).stat().st_mode) == 0o600
    assert home.find_exposed() == []
    assert home.identities() == ["alice"]
    assert open_identity(home, "alice", PASSPHRASE).identity.card() == read_card(home.identity_fs("alice"))


def test_names_and_existence_are_checked(tmp_path):
    home = Home.at(tmp_path)
    with pytest.raises(IdentityMissing, match="alice"):
        open_identity(home, "alice", PASSPHRASE)
    create_identity(home, "alice", None, now=NOW)
    with pytest.raises(IdentityExists):
        create_identity(home, "alice", None, now=NOW)
    home.identity_dir("alice").rename(home.identity_dir("bob"))
    with pytest.raises(KeystoreDamaged, match="'alice', not of 'bob'"):
        open_identity(home, "bob", None)


def test_a_card_that_a_crash_left_behind_is_mended(tmp_path):
    home = Home.at(tmp_path)
    keystore = create_identity(home, "alice", None, now=NOW)
    stale = (home.identity_dir("alice") / CARD).read_bytes()
    keystore.rotate(NOW + 1)
    card = home.identity_dir("alice") / CARD
    for left in (stale, b"", b"garbage"):
        card.write_bytes(left)
        with home.lock("alice"):
            open_identity(home, "alice", None)  # not while somebody uses the identity
        assert card.read_bytes() == left
        opened = open_identity(home, "alice", None)
        assert read_card(home.identity_fs("alice")) == opened.identity.card()


ROTATE = """
import sys
from pathlib import Path
from veen.client.home import Home
from veen.client.identity.keystore import open_identity
home = Home.at(Path(sys.argv[1]))
with home.lock("alice"):
    keystore = open_identity(home, "alice", None)
    for now in range(10_000):
        print(keystore.rotate(now).client_key.generation, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 5, 17])
def test_a_process_that_is_killed_while_it_rotates_loses_nothing_it_said(tmp_path, lines):
    """kill -9: what was reported is on disk; the file is whole; the lock is free; the card is mended."""
    home = Home.at(tmp_path)
    create_identity(home, "alice", None, now=NOW)
    child = process(ROTATE, tmp_path)
    try:
        said = [int(line(child)) for _ in range(lines)][-1]
    finally:
        rest = killed(child)
    said = max([said, *map(int, rest)])
    opened = open_identity(home, "alice", None)
    assert said <= opened.identity.client_key.generation <= said + 1
    assert read_card(home.identity_fs("alice")) == opened.identity.card()
    with home.lock("alice"):
        opened.rotate(NOW)


def test_a_second_process_cannot_create_or_change_an_identity_in_use(tmp_path):
    home = Home.at(tmp_path)
    with home.lock("alice"), pytest.raises(IdentityInUse):
        create_identity(home, "alice", None, now=NOW)
    assert home.identities() == []
