"""Verification of who the hub is: identity, signature, key map, private keys, and its rotations (spec §8.4)."""

from veen.core.ed25519 import SIGNATURE_BYTES
from veen.core.hubkeys import HubIdentity, canonical_json
from veen.storage import identity as identities
from veen.storage import layout
from veen.storage.controlfold import ControlFold
from veen.storage.errors import CorruptError
from veen.storage.findings import Findings
from veen.storage.fs import Fs
from veen.storage.fsckjudge import Judge
from veen.storage.identity import Binding
from veen.storage.scan import read_file

__all__ = ["check_binding", "check_identity", "check_rotations", "read_binding"]


def check_identity(fs: Fs, findings: Findings, given: HubIdentity | None, root_pk: bytes | None) -> HubIdentity | None:
    """Whom the log is held to: `given`, or what the directory says, whichever knows more of the hub's keys."""
    if not identities.exists(fs):
        if given is None:
            findings.error(layout.IDENTITY, 0, "missing", "the file is missing: nobody vouches for this log")
        return given
    try:
        found = identities.read_identity(fs, root_pk, key_map=False)
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "identity", exc.what)
        _private_keys(fs, findings, None)
        return given
    try:
        identities.read_identity(fs, root_pk)
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "rebuildable", exc.what)
    identity = given
    if given is not None and given.hub_id != found.hub_id:
        findings.error(layout.IDENTITY, 0, "identity", f"this is hub {found.hub_id.hex()}, not the given one")
    elif given is None or len(given.keys) < len(found.keys):
        identity = found
    if len(read_file(fs, layout.IDENTITY_SIG)) != SIGNATURE_BYTES:
        findings.warning(layout.IDENTITY_SIG, SIGNATURE_BYTES, "leftover", "a key rotation was cut off")
    elif not findings.has(layout.KEY_MAP) and read_file(fs, layout.KEY_MAP) != canonical_json(found.key_map()):
        findings.warning(layout.KEY_MAP, 0, "leftover", "lists a key that the identity does not have")
    _private_keys(fs, findings, found)
    return identity


def _private_keys(fs: Fs, findings: Findings, identity: HubIdentity | None) -> None:
    """They prove nothing, but a damaged one should be known before it is needed."""
    names = fs.list(layout.KEYS)
    for name in names:
        path = f"{layout.KEYS}/{name}"
        key_id, dot, suffix = name.partition(".")
        if not dot or suffix != "key" or len(key_id) != 16:
            findings.unknown(path)
            continue
        try:
            key = identities.read_key(fs, key_id)
        except CorruptError as exc:
            findings.error(exc.path, exc.offset, "identity", exc.what)
            continue
        if identity is not None and key.public not in {known.hub_pk for known in identity.keys}:
            findings.warning(path, 0, "unknown", "a private key that the identity does not list")
    if names and identity is not None and f"{identity.current.key_id}.key" not in names:
        path = layout.key(identity.current.key_id)
        findings.error(path, 0, "missing", "the private key of the current hub key is missing")


def check_rotations(identity: HubIdentity | None, control: ControlFold, findings: Findings) -> None:
    """Each key after the first was announced by a record that an earlier key signed (HID-12)."""
    if identity is None:
        return
    listed, said = identity.rotations(), control.rotations
    if said[: len(listed)] != listed[: len(said)] or len(listed) > len(said):
        findings.error(layout.IDENTITY, 0, "identity", "its keys are not those that the control journal tells")
    elif len(said) > len(listed):
        findings.warning(layout.IDENTITY, 0, "leftover", "a key rotation was cut off")


def read_binding(fs: Fs, findings: Findings, identity: HubIdentity | None) -> dict[bytes, Binding]:
    """What checkpoint-binding.json claims, by label; the seals of the labels confirm it one by one."""
    if identity is None or not fs.exists(layout.CHECKPOINT_BINDING):
        return {}
    try:
        return {bound.label: bound for bound in identities.read_binding(fs, identity)}
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "rebuildable", exc.what)
        return {}


def check_binding(judge: Judge) -> None:
    """What is bound must have been seen; it may lag behind, as it is written from time to time."""
    findings = judge.findings
    if judge.identity is not None and not judge.fs.exists(layout.CHECKPOINT_BINDING) and findings.counts["chunks"]:
        findings.warning(layout.CHECKPOINT_BINDING, 0, "missing", "the file is missing; the hub writes it")
    for label in sorted(judge.bound):
        what = f"no checkpoint of label {label.hex()} is as bound here"
        findings.error(layout.CHECKPOINT_BINDING, 0, "rebuildable", what)
