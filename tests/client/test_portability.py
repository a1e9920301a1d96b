"""The portability set: out, in, and every way it can be tampered with on the way (D-72)."""

import contextlib
import os
import random
import shutil
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import CHEAP, NOW, PASSPHRASE, PROFILE_ID, HubLog, message, seeded
from tests.damage import flipped
from tests.examples import examples, spread

from veen.client.errors import IdentityExists, IdentityInUse, LocalError, PortableSetInvalid, WrongPassphrase
from veen.client.home import CARD, KEYSTORE, Home, PrivateFs
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore, create_identity, open_identity
from veen.client.portable.portability import check_set, export_identity, export_set, import_set
from veen.client.portable.set_files import MANIFEST, Manifest, items, write_file
from veen.client.send.captokens import TokenStore, issue
from veen.client.state import LabelState, StateStore
from veen.client.verify.pin import HubPin
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.io.local import OsFs
from veen.testing.memfs import Crash, Fault, MemFs

ISSUER = SigningKey(b"\x21" * 32)
ATTACHMENTS = [b"sealed attachment", b"another" * 100, b""]


class World:
    """An identity with a bit of everything, in a home of its own."""

    def __init__(self, path, passphrase=PASSPHRASE):
        self.home = Home.at(path)
        self.keystore = create_identity(self.home, "alice", passphrase, now=NOW, kdf=CHEAP)
        secrets = self.keystore.secrets
        with self.home.lock("alice"):
            room = StreamKeys.create("room", random=seeded("room"))
            self.keystore.save(replace(secrets, keyring=secrets.keyring.with_keys(room)))
        self.key = self.keystore.identity.client_key.key
        self.hub = HubLog()
        labels = sorted((self.hub.label("room"), self.hub.label("board")))
        self.entries = []
        states = []
        for label in labels:
            for number in range(1, 6):
                msg = message(self.key, label, number, number - 1)
                self.entries.append((msg, self.hub.admit(msg)))
            tree = self.hub.trees[label]
            states.append(
                LabelState(
                    hub_id=self.hub.hub_id,
                    label=label,
                    client_id=self.key.public,
                    profile_id=PROFILE_ID,
                    mode="full",
                    client_seq=5,
                    prev_ack=5,
                    last_stream_seq=5,
                    last_mmr_root=tree.root(),
                    peaks=tuple(tree.peaks()),
                    rk=H(label),
                    last_receipt=self.entries[-1][1],
                )
            )
        states[0] = states[0].with_pending(message(self.key, labels[0], 6, 5).to_bytes())
        self.states = states
        self.checkpoints = [self.hub.checkpoint(label) for label in labels]
        with StateStore.open(self.home, "alice") as store:
            store.save(*states)
            store.save_pin(HubPin.of_identity(self.hub.identity))
        tokens = TokenStore(self.home.tokens_fs("alice"))
        self.token = issue(ISSUER, self.keystore.identity.card(), ["room"], ttl=60)
        tokens.put(self.token)
        self.held = tokens.add_grant(self.token.auth_ref(), self.hub.hub_id, NOW)

    def export(self, target):
        return export_identity(
            self.home,
            self.keystore,
            target,
            now=NOW,
            entries=self.entries,
            checkpoints=self.checkpoints,
            attachments=ATTACHMENTS,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def good(world):
    """The files of a good set."""
    fs = MemFs()
    world.export(fs)
    return fs.files()


# --- out and in ---------------------------------------------------------------------------------------------


@pytest.mark.req("CLNT-11")
def test_a_set_carries_everything_to_another_home(world, tmp_path):
    target = PrivateFs(tmp_path / "set")
    world.export(target)
    elsewhere = Home.at(tmp_path / "elsewhere")
    content, keystore = import_set(PrivateFs(tmp_path / "set"), elsewhere, PASSPHRASE)
    assert keystore.secrets == world.keystore.secrets == open_identity(elsewhere, "alice", PASSPHRASE).secrets
    assert TokenStore(elsewhere.tokens_fs("alice")).all() == [world.held]
    with StateStore.open(elsewhere, "alice") as store:
        states = list(store.states())
        assert store.pins() == [HubPin.of_identity(world.hub.identity)]
    assert [replace(state, rk=b"") for state in states] == [replace(state, rk=b"") for state in world.states]
    archive = elsewhere.archive_fs("alice")
    assert list(items(archive, "receipts.cborseq")) == [receipt.to_bytes() for _, receipt in world.entries]
    assert list(items(archive, "payloads.cborseq")) == [msg.to_bytes() for msg, _ in world.entries]
    assert {path.name for path in (archive.root / "attachments").iterdir()} == {H(data).hex() for data in ATTACHMENTS}
    assert (content.entries, content.checkpoints, content.attachments, content.hub_sigs_checked) == (10, 2, 3, True)
    assert elsewhere.find_exposed() == []


@pytest.mark.req("CLNT-11", "OP0-07")
def test_the_set_has_the_files_that_the_spec_names(good):
    """spec-1 §15, D-72"""
    assert {path for path in good if not path.startswith("attachments/")} == {
        "identity_card",
        "keystore.enc",
        "cap_tokens",
        "sync_state",
        "pending.cborseq",
        "hubs",
        "receipts.cborseq",
        "payloads.cborseq",
        "checkpoints.cborseq",
        "manifest.cbor",
    }
    receipts = [Receipt.from_bytes(raw) for raw in cbor.sequence(good["receipts.cborseq"])]
    assert receipts == sorted(receipts, key=lambda receipt: (receipt.label, receipt.stream_seq))


def test_keystore_enc_is_the_only_secret_in_a_set(world, good):
    """Whoever finds a set finds nothing that opens or signs, and no rk."""
    identity = world.keystore.identity
    secrets = [identity.id_sign.seed, identity.dh_sk, world.key.seed, PASSPHRASE.encode()]
    secrets += [keys.secret() for keys in world.keystore.secrets.keyring.entries]
    secrets += [secret.sk for secret in world.keystore.secrets.prekeys]
    secrets += [state.rk for state in world.states]
    for content in good.values():
        for secret in secrets:
            assert secret not in content


def test_the_rekey_chain_begins_anew_after_an_import(good, tmp_path):
    """D-11: two homes must not share one chain."""
    import_set(MemFs(good), Home.at(tmp_path), PASSPHRASE, random=seeded("import"))
    with StateStore.open(Home.at(tmp_path), "alice") as store:
        rks = {state.rk for state in store.states()}
    assert len(rks) == 2
    assert bytes(32) not in rks


def test_an_exported_directory_is_for_its_owner_only(world, tmp_path):
    world.export(PrivateFs(tmp_path / "set"))
    for path in (tmp_path / "set", *(tmp_path / "set").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_equal_exports_have_equal_bytes(world, good):
    again = MemFs()
    world.export(again)
    assert again.files() == good


def test_an_identity_with_nothing_else_can_be_carried(tmp_path):
    home = Home.at(tmp_path / "a")
    keystore = create_identity(home, "bob", None, now=NOW)
    fs = MemFs()
    export_set(fs, keystore, now=NOW)
    content, imported = import_set(fs, Home.at(tmp_path / "b"), None)
    assert imported.secrets == keystore.secrets
    assert (content.entries, content.hub_sigs_checked) == (0, False)


def test_receipts_without_messages_can_be_carried(world):
    fs = MemFs()
    export_set(fs, world.keystore, now=NOW, entries=[(None, receipt) for _, receipt in world.entries])
    assert check_set(fs).entries == 10


@pytest.mark.parametrize("left", [{0}, {2}, {5, 6}, {0, 1, 7}])
def test_some_entries_of_a_label_can_be_carried(world, left):
    """Whoever read a part of a log keeps that: its roots are compared as long as nothing is missing."""
    fs = MemFs()
    entries = [entry for number, entry in enumerate(world.entries) if number not in left]
    export_set(fs, world.keystore, now=NOW, entries=entries)
    assert check_set(fs).entries == len(entries)


def test_nothing_is_written_over(world, good, tmp_path):
    with pytest.raises(LocalError, match="not empty"):
        world.export(MemFs({"something": b""}))
    with pytest.raises(IdentityExists):
        import_set(MemFs(good), world.home, PASSPHRASE)
    with world.home.lock("alice"), pytest.raises(IdentityInUse):
        world.export(MemFs())


def test_the_passphrase_is_asked_before_anything_is_written(good, tmp_path):
    with pytest.raises(WrongPassphrase):
        import_set(MemFs(good), Home.at(tmp_path / "home"), "wrong")
    assert not (tmp_path / "home").exists()


# --- tampering ----------------------------------------------------------------------------------------------


def paths_of(good):
    return sorted(good)


@pytest.mark.req("CLNT-11")
@given(data=st.data())
@examples(150)
def test_one_flipped_bit_anywhere_is_found_and_the_file_is_named(good, data):
    path = data.draw(st.sampled_from([path for path in paths_of(good) if good[path]]))
    content = bytearray(good[path])
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    if path == CARD and bytes(content).split() == good[path].split():
        return
    with pytest.raises(PortableSetInvalid) as caught:
        check_set(MemFs({**good, path: bytes(content)}))
    assert caught.value.path == path


def test_a_missing_cut_longer_or_foreign_file_is_named(good):
    for path in paths_of(good):
        wrong = [
            {name: content for name, content in good.items() if name != path},
            {**good, path: good[path] + b"\x00"},
        ]
        if good[path]:
            wrong += [{**good, path: flipped(good[path])}, {**good, path: good[path][: len(good[path]) // 2]}]
        for files in wrong:
            with pytest.raises(PortableSetInvalid) as caught:
                check_set(MemFs(files))
            assert caught.value.path == path
    for stray in ("stray", "attachments/stray"):
        with pytest.raises(PortableSetInvalid, match="not in the manifest") as caught:
            check_set(MemFs({**good, stray: b""}))
        assert caught.value.path == stray


def test_nothing_of_a_tampered_set_is_imported(good, tmp_path):
    receipts = bytearray(good["receipts.cborseq"])
    receipts[100] ^= 1
    with pytest.raises(PortableSetInvalid):
        import_set(MemFs({**good, "receipts.cborseq": bytes(receipts)}), Home.at(tmp_path / "home"), PASSPHRASE)
    assert not (tmp_path / "home").exists()


def resigned(good, key, **changed):
    """The set as somebody with a signing key makes it fit again."""
    files = {**good, **changed}
    old = Manifest.from_bytes(files.pop(MANIFEST))
    fs = MemFs()
    listed = [write_file(fs, path, [content]) for path, content in files.items()]
    manifest = Manifest.issue(key, created_at=old.created_at, files=listed)
    return {**files, MANIFEST: manifest.to_bytes()}


def test_a_set_is_not_made_to_fit_by_another_key(good):
    with pytest.raises(PortableSetInvalid, match="another identity than the card") as caught:
        check_set(MemFs(resigned(good, ISSUER)))
    assert caught.value.path == MANIFEST
    forged = Manifest.from_bytes(resigned(good, ISSUER)[MANIFEST])
    genuine = Manifest.from_bytes(good[MANIFEST])
    with pytest.raises(PortableSetInvalid, match="not signed"):
        check_set(MemFs({**good, MANIFEST: replace(forged, id_sign_pk=genuine.id_sign_pk).to_bytes()}))


def sequence(objects):
    return b"".join(obj.to_bytes() for obj in objects)


def leaf_after(world, receipts, msg):
    """The receipt for a message behind these entries, by a hub that accepts anything."""
    tree = Mmr()
    for leaf in (*(receipt.leaf_hash for receipt in receipts), msg.leaf_hash()):
        tree.append(leaf)
    return Receipt.issue(
        world.hub.key,
        label=msg.label,
        stream_seq=tree.size,
        leaf_hash=msg.leaf_hash(),
        mmr_root=tree.root(),
        hub_ts=receipts[-1].hub_ts,
    )


def bad_contents(world, good):
    """(path to be named, files that replace good ones): what even the owner's signature does not make true."""
    entries, key = world.entries, world.key
    receipts = [receipt for _, receipt in entries]
    messages = [msg for msg, _ in entries]
    foreign = HubLog(9)
    stranger = foreign.admit(messages[0])
    other_root = Receipt.issue(
        world.hub.key,
        label=receipts[2].label,
        stream_seq=3,
        leaf_hash=receipts[2].leaf_hash,
        mmr_root=bytes(32),
        hub_ts=NOW,
    )
    seq, pay = "receipts.cborseq", "payloads.cborseq"
    turned = {seq: sequence([*receipts[1:], receipts[0]]), pay: sequence([*messages[1:], messages[0]])}
    yield "unsorted receipts", seq, turned
    yield "a receipt twice", seq, {seq: sequence([receipts[0], *receipts])}
    yield "a receipt of a strange hub", seq, {seq: sequence([stranger, *receipts[1:]])}
    yield "a root that does not follow", seq, {seq: sequence([*receipts[:2], other_root, *receipts[3:]])}
    yield "half an item", seq, {seq: good[seq][:-3]}
    yield "another kind of item", seq, {seq: cbor.encode([1, 2, 3]) + good[seq]}
    yield "a message of another place", pay, {pay: sequence([messages[1], messages[0], *messages[2:]])}
    yield "a message too few", pay, {pay: sequence(messages[:-1])}
    yield "a message too many", pay, {pay: sequence([*messages, messages[0]])}
    yield "a forged message", pay, {pay: sequence([replace(messages[0], sig=bytes(64)), *messages[1:]])}
    for what, client_seq, prev_ack in (
        ("an author's number twice", 4, 4),
        ("an author's number left out", 6, 4),
        ("a prev_ack that goes back", 5, 2),
        ("a prev_ack of an entry that did not exist", 5, 5),
    ):
        odd = message(key, receipts[4].label, client_seq, prev_ack)
        issued = leaf_after(world, receipts[:4], odd)
        yield (
            what,
            pay,
            {
                seq: sequence([*receipts[:4], issued, *receipts[5:]]),
                pay: sequence([*messages[:4], odd, *messages[5:]]),
            },
        )
    check = "checkpoints.cborseq"
    yield "unsorted checkpoints", check, {check: sequence(reversed(world.checkpoints))}
    forged = replace(world.checkpoints[0], mmr_root=bytes(32))
    yield "a forged checkpoint", check, {check: sequence([forged, world.checkpoints[1]])}
    token = replace(world.held, token=replace(world.token, subject_pk=bytes(32)))
    yield "a forged token", "cap_tokens", {"cap_tokens": token.to_bytes()}
    stray = Msg.from_bytes(message(key, H(b"no label of ours"), 1).to_bytes())
    yield "a pending message of no label", "pending.cborseq", {"pending.cborseq": stray.to_bytes()}
    twice = [message(key, world.states[0].label, 6, 5)] * 2
    yield "a pending message twice", "pending.cborseq", {"pending.cborseq": sequence(twice)}
    yield "states that contradict themselves", "sync_state", {"sync_state": b"\xa0"}
    hub = cbor.encode({1: bytes(32), 2: world.hub.identity.to_bytes()})
    yield "a hub under another name", "hubs", {"hubs": hub}
    yield "a hub that is none", "hubs", {"hubs": cbor.encode({1: bytes(32), 2: b"{}"})}
    yield "no keystore", KEYSTORE, {KEYSTORE: b""}
    name = f"attachments/{H(b'x').hex()}"
    yield "an attachment under another name", name, {name: b"not x"}
    yield "a path that leads out", MANIFEST, {"../outside": b""}
    yield "a path that no set has", MANIFEST, {"attachments/readme": b""}


def test_what_is_signed_and_still_wrong_is_named(world, good):
    for what, path, files in bad_contents(world, good):
        with pytest.raises(PortableSetInvalid) as caught:
            check_set(MemFs(resigned(good, world.keystore.identity.id_sign, **files)))
        assert caught.value.path == path, what


# --- sizes and links of a set that somebody else has made -----------------------------------------------------------


def on_disk(good, directory):
    for path, content in good.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return OsFs(directory)


@pytest.mark.parametrize("path", [CARD, MANIFEST, KEYSTORE, "cap_tokens", "receipts.cborseq"])
def test_a_file_of_any_size_is_refused_before_it_is_read(good, tmp_path, path, monkeypatch):
    """With a hole in it a card of a terabyte costs its maker nothing, and must cost us nothing either."""
    fs = on_disk(good, tmp_path)
    with (tmp_path / path).open("r+b") as file:
        file.truncate(1 << 40)
    read = 0
    pread = os.pread

    def counted(fd, size, offset):
        nonlocal read
        assert size <= 1 << 24
        read += size
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    with pytest.raises(PortableSetInvalid) as caught:
        check_set(fs)
    assert caught.value.path == path
    assert read < 1 << 25


@pytest.mark.parametrize("path", [CARD, KEYSTORE, "cap_tokens", "sync_state", "pending.cborseq", "hubs"])
def test_what_is_held_in_memory_is_bounded_by_kind_even_if_its_owner_signed_it(world, good, path):
    old = Manifest.from_bytes(good[MANIFEST])
    large = [replace(file, size=(1 << 30) if file.path == path else file.size) for file in old.files]
    manifest = Manifest.issue(world.keystore.identity.id_sign, created_at=old.created_at, files=large)
    with pytest.raises(PortableSetInvalid, match="is not valid, at most") as caught:
        check_set(MemFs({**good, MANIFEST: manifest.to_bytes()}))
    assert caught.value.path == path


@pytest.mark.parametrize("path", [CARD, MANIFEST, "cap_tokens", "receipts.cborseq", "attachments"])
def test_a_link_in_a_set_is_not_followed(good, tmp_path, path):
    """What it points to could be a file of the reader, which the import would copy."""
    directory, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    fs = on_disk(good, directory)
    (directory / path).rename(elsewhere)
    (directory / path).symlink_to(elsewhere)
    with pytest.raises(PortableSetInvalid, match="is a link"):
        check_set(fs)


def test_a_pipe_in_a_set_is_not_waited_for(good, tmp_path):
    fs = on_disk(good, tmp_path)
    (tmp_path / CARD).unlink()
    os.mkfifo(tmp_path / CARD)
    with pytest.raises(PortableSetInvalid, match="neither a file nor a directory"):
        check_set(fs)


def test_the_keystore_of_somebody_else_is_not_taken_for_ours(world, good, tmp_path):
    other = create_identity(Home.at(tmp_path / "other"), "alice", PASSPHRASE, now=NOW, kdf=CHEAP)
    files = resigned(good, world.keystore.identity.id_sign, **{KEYSTORE: other.file_bytes()})
    with pytest.raises(PortableSetInvalid, match="its identity is not the one on the card") as caught:
        import_set(MemFs(files), Home.at(tmp_path / "home"), PASSPHRASE)
    assert caught.value.path == KEYSTORE


def test_a_file_that_changes_while_it_is_imported_is_noticed(good, tmp_path):
    """Checked once and copied once: what is copied is what was checked."""

    class Changing(MemFs):
        opened = 0

        def open(self, path, *, create=False):
            if path == "payloads.cborseq":
                self.opened += 1
                if self.opened == 3:  # hashed, read, and now copied
                    return super().open("receipts.cborseq")
            return super().open(path, create=create)

    with pytest.raises(PortableSetInvalid, match=r"payloads\.cborseq"):
        import_set(Changing(good), Home.at(tmp_path), PASSPHRASE)
    assert Home.at(tmp_path).identities() == []


# --- crashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", spread(["lost", "torn", "done", "error"], 2))
def test_an_export_that_is_cut_off_is_no_set_and_one_that_ends_is_whole(world, kind):
    counted = MemFs()
    world.export(counted)
    for at in range(1, counted.operations + 1):
        fs = MemFs(fault=Fault(at=at, kind=kind))
        with contextlib.suppress(Crash, OSError):
            world.export(fs)
        disk = fs.after_crash(random.Random(at))
        if disk.exists(MANIFEST):
            assert at == counted.operations
            assert check_set(disk).entries == 10
        else:
            with pytest.raises(PortableSetInvalid):
                check_set(disk)


def test_an_import_that_is_cut_off_leaves_no_identity_and_can_be_done_again(good, tmp_path):
    class Dying(MemFs):
        left = 0

        def open(self, path, *, create=False):
            self.left -= 1
            if self.left == 0:
                raise Crash
            return super().open(path, create=create)

    home = Home.at(tmp_path / "home")
    cut = 0
    for left in range(1, 200):
        source = Dying(good)
        source.left = left
        try:
            content, _ = import_set(source, home, PASSPHRASE)
        except Crash:
            cut += 1
            assert home.identities() == []
        else:
            assert content.entries == 10
            break
    assert cut > 20
    with StateStore.open(home, "alice") as store:
        assert len(list(store.states())) == 2
    shutil.rmtree(tmp_path / "home")


# --- sequences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[], [0], [1] * 5_000, [1 << 20] * 6, [1, 1 << 20, 3, (1 << 20) + 70_000, 0]], ids=len
)
def test_a_sequence_is_read_in_a_window(sizes):
    """Items across the borders of what is read at once come out whole."""
    wanted = [cbor.encode(bytes(size)) for size in sizes]
    fs = MemFs()
    listed = write_file(fs, "sequence", wanted)
    assert (listed.size, listed.hash) == (sum(map(len, wanted)), H(b"".join(wanted)))
    assert list(items(fs, "sequence")) == wanted


@given(st.binary(max_size=60))
def test_any_bytes_are_a_sequence_or_an_error_that_names_the_file(data):
    fs = MemFs({"some/file": data})
    try:
        objects = list(items(fs, "some/file"))
    except PortableSetInvalid as exc:
        assert exc.path == "some/file"  # noqa: PT017 - either outcome is right
    else:
        assert b"".join(objects) == data


def test_a_plain_keystore_can_be_carried_and_stays_plain(tmp_path):
    world = World(tmp_path / "a", passphrase=None)
    fs = MemFs()
    world.export(fs)
    _, keystore = import_set(fs, Home.at(tmp_path / "b"), None)
    assert keystore.is_plain
    assert isinstance(keystore, Keystore)
