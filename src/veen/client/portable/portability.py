"""The portability set: an identity with everything that it holds, as a directory that can be carried elsewhere
(D-72).

    identity_card         the public card
    keystore.enc          the only secret in the set, sealed as in the home
    cap_tokens            capability tokens, by auth_ref
    sync_state            states of labels, by hub_id, label, client_id (without rk, which is drawn again)
    pending.cborseq       MSGs without a receipt: the exact bytes to send again
    hubs                  identity records of the hubs; hub_id gives the routing key, so no secret is needed for that
    receipts.cborseq      RECEIPTs by label, stream_seq
    payloads.cborseq      their MSGs, one for each receipt, or none at all
    checkpoints.cborseq   CHECKPOINTs by label, upto_seq
    attachments/COID      sealed attachments, named by their hash
    manifest.cbor         all of these with their hashes, signed by the identity; written last

Every byte of a set is checked before any of it is imported, and the first altered file is named. The
keystore is put in place last: until then there is no identity, and an interrupted import can be repeated.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from veen.client.errors import IdentityExists, LocalError, PortableSetInvalid
from veen.client.home import CARD, KEYSTORE, Home
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Random
from veen.client.identity.keystore import MAX_CARD_BYTES, MAX_KEYSTORE_BYTES, Keystore, SealedKeystore
from veen.client.portable.set_files import (
    ATTACHMENTS,
    MANIFEST,
    EntryCheck,
    FileWriter,
    Listed,
    Manifest,
    check_attachment,
    check_checkpoints,
    check_file,
    copy_file,
    items,
    write_file,
)
from veen.client.send.captokens import HeldToken, TokenStore
from veen.client.state import RK_BYTES, LabelState, Pending, StateStore
from veen.client.verify.pin import HubPin
from veen.core.errors import VeenError
from veen.core.hashing import H
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity, HubKey
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.wire import Bytes32, Part, Wire
from veen.io.errors import LinkError
from veen.io.inside import FileRefused, check_size, read_inside
from veen.io.local import Fs

_TOKENS: Final = "cap_tokens"
_STATES: Final = "sync_state"
_PENDING: Final = "pending.cborseq"
_HUBS: Final = "hubs"
_RECEIPTS: Final = "receipts.cborseq"
_PAYLOADS: Final = "payloads.cborseq"
_CHECKPOINTS: Final = "checkpoints.cborseq"
_ARCHIVED: Final = (_RECEIPTS, _PAYLOADS, _CHECKPOINTS)

# Greatest size of the files that are read as a whole; the other files are read piece by piece.
_MAX_BYTES: Final = {
    CARD: MAX_CARD_BYTES,
    KEYSTORE: MAX_KEYSTORE_BYTES,
    MANIFEST: Manifest.MAX_BYTES,
    _TOKENS: 64 << 20,
    _STATES: 128 << 20,
    _PENDING: 128 << 20,
    _HUBS: 16 << 20,
}
_MAX_PIECEWISE_BYTES: Final = 1 << 40

T = TypeVar("T")
W = TypeVar("W", bound=Wire)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRecord(Part, kind="hub record"):
    """A hub identity as the client last accepted it."""

    hub_id: Bytes32
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableSet:
    """A checked set. Entries and attachments stay in their files."""

    card: IdentityCard
    manifest: Manifest
    tokens: tuple[HeldToken, ...]
    states: tuple[LabelState, ...]
    hubs: Mapping[bytes, HubIdentity]
    entries: int
    checkpoints: int
    attachments: int
    hub_sigs_checked: bool  # False where the set knows no hub: then receipts were compared, not verified


# --- export -------------------------------------------------------------------------------------------------


def export_set(
    target: Fs,
    keystore: Keystore,
    *,
    now: int,
    tokens: Iterable[HeldToken] = (),
    states: Iterable[LabelState] = (),
    hubs: Mapping[bytes, bytes] | None = None,
    entries: Iterable[tuple[Msg | None, Receipt]] = (),
    checkpoints: Iterable[Checkpoint] = (),
    attachments: Iterable[bytes] = (),
) -> Manifest:
    """Write a set into an empty directory: once written it is only read (spec-1 §15).

    Entries and checkpoints come sorted by label and position, as from reading label by label; a caller without messages
    passes None for each of them.
    """
    if target.list(""):
        raise LocalError("the directory for the export is not empty")
    tokens = sorted(tokens, key=lambda held: held.auth_ref)
    states = sorted(states, key=lambda state: (state.hub_id, state.label, state.client_id))
    portable = (replace(state, rk=bytes(RK_BYTES), pending=()) for state in states)
    pending = sorted((Msg.from_bytes(item.msg) for state in states for item in state.pending), key=_place_of_pending)
    records = (HubRecord(hub_id=hub_id, record=record) for hub_id, record in sorted((hubs or {}).items()))
    listed = [
        write_file(target, CARD, [f"{keystore.identity.card().to_text()}\n".encode()]),
        write_file(target, KEYSTORE, [keystore.file_bytes()]),
        write_file(target, _TOKENS, _encode(tokens)),
        write_file(target, _STATES, _encode(portable)),
        write_file(target, _PENDING, _encode(pending)),
        write_file(target, _HUBS, _encode(records)),
        *_write_entries(target, entries),
        write_file(target, _CHECKPOINTS, _encode(checkpoints)),
    ]
    coids = set()
    for data in attachments:
        coid = H(data)
        if coid not in coids:
            target.make_dir(ATTACHMENTS)
            listed.append(write_file(target, f"{ATTACHMENTS}/{coid.hex()}", [data]))
            coids.add(coid)
    for item in listed:
        _check_size(item)  # nothing is exported that could not be imported
    manifest = Manifest.issue(keystore.identity.id_sign, created_at=now, files=listed)
    target.replace(MANIFEST, manifest.to_bytes())
    return manifest


def export_identity(
    home: Home,
    keystore: Keystore,
    target: Fs,
    *,
    now: int,
    entries: Iterable[tuple[Msg | None, Receipt]] = (),
    checkpoints: Iterable[Checkpoint] = (),
    attachments: Iterable[bytes] = (),
) -> Manifest:
    """Export an identity with its tokens and state. Raise IdentityInUse while a client changes them."""
    name = keystore.identity.name
    with StateStore.open(home, name) as store:
        return export_set(
            target,
            keystore,
            now=now,
            tokens=TokenStore(home.tokens_fs(name)).all(),
            states=store.states(),
            hubs={pin.identity.hub_id: pin.identity.to_bytes() for pin in store.pins() if pin.is_whole},
            entries=entries,
            checkpoints=checkpoints,
            attachments=attachments,
        )


def _place_of_pending(msg: Msg) -> tuple[bytes, bytes, int]:
    return msg.label, msg.client_id, msg.client_seq


def _encode(objects: Iterable[Wire]) -> Iterator[bytes]:
    return (obj.to_bytes() for obj in objects)


def _write_entries(target: Fs, entries: Iterable[tuple[Msg | None, Receipt]]) -> list[Listed]:
    """Write both files in one pass: entries may come from a hub, and only once."""
    with FileWriter(target, _RECEIPTS) as receipts, FileWriter(target, _PAYLOADS) as payloads:
        for msg, receipt in entries:
            receipts.write(receipt.to_bytes())
            if msg is not None:
                payloads.write(msg.to_bytes())
        return [receipts.finish(), payloads.finish()]


# --- check and import ---------------------------------------------------------------------------------------


def check_set(source: Fs, hub_pks: Sequence[bytes] = ()) -> PortableSet:
    """Read and verify a whole set, without its passphrase. PortableSetInvalid names the first file with a fault.

    `hub_pks` are hub keys known from elsewhere: receipts and checkpoints must then be signed by one of them. Without
    any, the keys in the set are trusted as far as its exporter is.
    """
    card = _blame_file(CARD, lambda: IdentityCard.from_text(_small_file(source, CARD).decode(errors="replace")))
    manifest = _blame_file(MANIFEST, lambda: Manifest.from_bytes(_small_file(source, MANIFEST)))
    if manifest.id_sign_pk != card.id_sign_pk:
        raise PortableSetInvalid(MANIFEST, "it is that of another identity than the card")
    manifest.verify()
    _check_names(source, manifest)
    for listed in manifest.files:
        _check_size(listed)
    for listed in manifest.files:
        check_file(source, listed)
    # From here on a fault is the exporter's, who signed the manifest: it is still named, and nothing is imported.
    _blame_file(KEYSTORE, lambda: SealedKeystore.read(source))
    tokens = tuple(_objects(source, _TOKENS, HeldToken))
    for token in tokens:
        _blame_file(_TOKENS, token.token.verify)
    states = _with_pending(tuple(_objects(source, _STATES, LabelState)), _objects(source, _PENDING, Msg))
    hubs = {record.hub_id: _hub(record) for record in _objects(source, _HUBS, HubRecord)}
    signers = _signers(hubs.values(), hub_pks)
    entries = EntryCheck(signers)
    messages = _objects(source, _PAYLOADS, Msg) if _size(manifest, _PAYLOADS) else None
    for receipt in _objects(source, _RECEIPTS, Receipt):
        msg = next(messages, None) if messages is not None else None
        entries.add(_RECEIPTS, receipt, _PAYLOADS, msg)
        if messages is not None and msg is None:
            raise PortableSetInvalid(_PAYLOADS, "there are fewer messages than receipts")
    if messages is not None and next(messages, None) is not None:
        raise PortableSetInvalid(_PAYLOADS, "there are more messages than receipts")
    attachments = [listed for listed in manifest.files if listed.path.startswith(f"{ATTACHMENTS}/")]
    for listed in attachments:
        check_attachment(listed)
    return PortableSet(
        card=card,
        manifest=manifest,
        tokens=tokens,
        states=states,
        hubs=hubs,
        entries=entries.count,
        checkpoints=check_checkpoints(_CHECKPOINTS, _objects(source, _CHECKPOINTS, Checkpoint), signers),
        attachments=len(attachments),
        hub_sigs_checked=bool(signers),
    )


def import_set(
    source: Fs, home: Home, passphrase: str | None, *, random: Random = os.urandom
) -> tuple[PortableSet, Keystore]:
    """Check a set, open its keystore, and add its identity to this home; nothing is overwritten."""
    content = check_set(source)
    name = content.card.name
    secrets = Keystore.open(source, passphrase).secrets
    if secrets.identity.card() != content.card:
        raise PortableSetInvalid(KEYSTORE, "its identity is not the one on the card")
    with StateStore.open(home, name) as store:
        if home.has_identity(name):
            raise IdentityExists(name)
        store.save(*(replace(state, rk=random(RK_BYTES)) for state in content.states))
        for hub in content.hubs.values():
            store.save_pin(HubPin.of_identity(hub))
        tokens = TokenStore(home.tokens_fs(name))
        for token in content.tokens:
            tokens.restore(token)
        archive, identity = home.archive_fs(name), home.identity_fs(name)
        by_path = {listed.path: listed for listed in content.manifest.files}
        for path, listed in by_path.items():
            if path in _ARCHIVED or path.startswith(f"{ATTACHMENTS}/"):
                copy_file(source, listed, archive)
        for path in (CARD, KEYSTORE):  # with the last one there is an identity
            data = _small_file(source, path)
            if H(data) != by_path[path].hash:
                raise PortableSetInvalid(path, "the file was altered while it was imported")
            identity.replace(path, data, private=True)
    return content, Keystore.open(identity, passphrase)


def _check_names(source: Fs, manifest: Manifest) -> None:
    """Check that the set has exactly its files: none beside it, none that leads out of it."""
    fixed = {CARD, KEYSTORE, _TOKENS, _STATES, _PENDING, _HUBS, *_ARCHIVED}
    listed = {file.path for file in manifest.files}
    for path in sorted(fixed - listed):
        raise PortableSetInvalid(MANIFEST, f"{path} is not listed")
    for path in sorted(listed - fixed):
        if not _is_attachment(path):
            raise PortableSetInvalid(MANIFEST, f"no set has a file {path!r}")
    present = {name for name in source.list("") if name not in (MANIFEST, ATTACHMENTS)}
    try:
        present |= {f"{ATTACHMENTS}/{name}" for name in source.list(ATTACHMENTS)}
    except LinkError as exc:
        raise PortableSetInvalid(ATTACHMENTS, "the directory is a link, and may lead out of the set") from exc
    for path in sorted(present - listed):
        raise PortableSetInvalid(path, "the file is not in the manifest")


def _is_attachment(path: str) -> bool:
    name = path.removeprefix(f"{ATTACHMENTS}/")
    return name != path and len(name) == 64 and set(name) <= set("0123456789abcdef")


def _with_pending(states: tuple[LabelState, ...], messages: Iterator[Msg]) -> tuple[LabelState, ...]:
    waiting: dict[tuple[bytes, bytes], list[Pending]] = {}
    for msg in messages:
        _blame_file(_PENDING, msg.verify)
        waiting.setdefault((msg.label, msg.client_id), []).append(Pending(msg.client_seq, msg.to_bytes()))
    joined = tuple(replace(state, pending=tuple(waiting.pop((state.label, state.client_id), ()))) for state in states)
    if waiting:
        raise PortableSetInvalid(_PENDING, "a message belongs to no label of the set")
    for state in joined:
        _blame_file(_PENDING, state.check)
    return joined


def _signers(hubs: Iterable[HubIdentity], hub_pks: Sequence[bytes]) -> tuple[HubIdentity, ...]:
    """Return the hubs whose signatures count: those of the set, or the trusted keys alone, at the times in the set."""
    if not hub_pks:
        return tuple(hubs)
    listed = {key.hub_pk: key for hub in hubs for key in hub.keys}
    return tuple(HubIdentity((listed.get(pk) or HubKey(hub_pk=pk, valid_from=0),)) for pk in dict.fromkeys(hub_pks))


def _hub(one: HubRecord) -> HubIdentity:
    hub = _blame_file(_HUBS, lambda: HubIdentity.from_bytes(one.record))
    if hub.hub_id != one.hub_id:
        raise PortableSetInvalid(_HUBS, f"the record of hub {one.hub_id.hex()[:16]}… is that of another hub")
    return hub


def _objects(source: Fs, path: str, kind: type[W]) -> Iterator[W]:
    for raw in items(source, path):
        yield _blame_file(path, partial(kind.from_bytes, raw))


def _small_file(source: Fs, path: str) -> bytes:
    """Read a file as a whole. Refuse a link, a device, or one that is larger than its kind can be."""
    try:
        return read_inside(source, path, _MAX_BYTES[path])
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
        raise PortableSetInvalid(path, "the file is missing: the export was not finished") from exc
    except FileRefused as exc:
        raise PortableSetInvalid(path, str(exc)) from exc


def _check_size(listed: Listed) -> None:
    try:
        check_size(listed.size, _MAX_BYTES.get(listed.path, _MAX_PIECEWISE_BYTES), listed.path)
    except FileRefused as exc:
        raise PortableSetInvalid(listed.path, str(exc)) from exc


def _size(manifest: Manifest, path: str) -> int:
    return next((listed.size for listed in manifest.files if listed.path == path), 0)


def _blame_file(path: str, read: Callable[[], T]) -> T:
    """Return the result of `read`; turn any error into one about that file."""
    try:
        return read()
    except PortableSetInvalid:
        raise
    except VeenError as exc:
        raise PortableSetInvalid(path, str(exc)) from exc
