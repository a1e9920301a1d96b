"""Verification of the hub's identity: its signature, key map, private keys and rotations (spec §8.4)."""

from veen.core.crypto.ed25519 import SIGNATURE_BYTES
from veen.core.objects.identity import HubIdentity, canonical_json
from veen.core.objects.trusted_root import TrustedKeys
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.control_state import ControlFold
from veen.storage.findings import Findings
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import CheckpointBinding
from veen.storage.scan import read_file
from veen.verify.entry import DirectoryRules


def check_identity(fs: Fs, findings: Findings, given: HubIdentity | None, root_pk: bytes | None) -> HubIdentity | None:
    """Check the identity files; return the identity to verify with (`choose_identity`)."""
    if not identities.exists(fs):
        if given is None:
            findings.error(layout.IDENTITY, 0, "missing", "the file is missing: nobody vouches for this log")
        return given
    try:
        own = identities.read_identity(fs, root_pk, key_map=False)
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "identity" if fs.exists(exc.path) else "missing", exc.what)
        _private_keys(fs, findings, None)
        return given
    try:
        identities.read_identity(fs, root_pk)
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "rebuildable", exc.what)
    if given is not None and given.hub_id != own.hub_id:
        findings.error(layout.IDENTITY, 0, "identity", f"this is hub {own.hub_id.hex()}, not the given one")
    if len(read_file(fs, layout.IDENTITY_SIG)) != SIGNATURE_BYTES:
        findings.warning(layout.IDENTITY_SIG, SIGNATURE_BYTES, "leftover", "a key rotation was cut off")
    elif not findings.has(layout.KEY_MAP) and read_file(fs, layout.KEY_MAP) != canonical_json(own.key_map()):
        findings.warning(layout.KEY_MAP, 0, "leftover", "lists a key that the identity does not have")
    _private_keys(fs, findings, own)
    return choose_identity(given, own)


def choose_identity(given: HubIdentity | None, own: HubIdentity) -> HubIdentity:
    """Return the identity to verify with: `given`, or the directory's own if it knows more keys of the same hub."""
    if given is None or (given.hub_id == own.hub_id and len(given.keys) < len(own.keys)):
        return own
    return given


def _private_keys(fs: Fs, findings: Findings, identity: HubIdentity | None) -> None:
    """Check private keys. They prove nothing, but the operator should learn of a damaged one before it is needed."""
    names = fs.list(layout.KEYS)
    for name in names:
        path = f"{layout.KEYS}/{name}"
        if path in (layout.BIRTH, layout.OUTER_KEY):
            continue
        key_id, dot, suffix = name.partition(".")
        if not dot or suffix != "key" or len(key_id) != 16:
            findings.unknown(path)
            continue
        try:
            key = identities.read_key(fs, key_id)
        except CorruptError as exc:
            findings.error(exc.path, exc.offset, "identity", exc.what)
            continue
        except identities.KeyExposedError as exc:
            findings.warning(path, 0, "identity", f"other users may access this private key (mode {exc.mode:04o})")
            continue
        if identity is not None and key.public not in {hub_key.hub_pk for hub_key in identity.keys}:
            findings.warning(path, 0, "unknown", "a private key that the identity does not list")
    if names and identity is not None and f"{identity.current.key_id}.key" not in names:
        path = layout.key(identity.current.key_id)
        findings.error(path, 0, "missing", "the private key of the current hub key is missing")


def pin_fault(
    pin: TrustedKeys | None, given: HubIdentity | None, identity: HubIdentity | None, control: ControlFold, fs: Fs
) -> str | None:
    """Return why a key of the log does not follow from the trusted ones; None if all do.

    A pinned root must have signed the identity of the directory `fs`. A given identity is trusted with all its keys. A
    directory that knows more of them must prove where they come from.
    """
    if pin is not None and (fault := pin.fault(identity, control.rotation_records, signatures_of(fs))) is not None:
        return fault
    if given is None or identity is given:
        return None
    return TrustedKeys(hub_pks=tuple(key.hub_pk for key in given.keys)).fault(identity, control.rotation_records)


def signatures_of(fs: Fs) -> tuple[bytes, ...]:
    """Return the signatures over the identity; none if they cannot be read, which is a separate finding."""
    try:
        return identities.read_signatures(fs)
    except CorruptError:
        return ()


def check_pin(
    fs: Fs,
    pin: TrustedKeys | None,
    given: HubIdentity | None,
    identity: HubIdentity | None,
    control: ControlFold,
    findings: Findings,
) -> None:
    if (fault := pin_fault(pin, given, identity, control, fs)) is not None:
        findings.error(layout.IDENTITY, 0, "pin", fault)


def check_rotations(identity: HubIdentity | None, control: ControlFold, findings: Findings) -> None:
    """Check that each key after the first was announced by a record that an earlier key signed (HID-12)."""
    if identity is None:
        return
    listed, said = identity.rotations(), identity.in_force(control.rotations)
    if said == listed[: len(said)] and len(listed) > len(said) and findings.lacks_control:
        what = "it lists keys, and the records of the control journal that announce them are missing"
        findings.error(layout.IDENTITY, 0, "unverified", what)
    elif said[: len(listed)] != listed[: len(said)] or len(listed) > len(said):
        findings.error(layout.IDENTITY, 0, "identity", "its keys are not those that the control journal tells")
    elif len(said) > len(listed):
        findings.warning(layout.IDENTITY, 0, "leftover", "a key rotation was cut off")


def read_binding(fs: Fs, findings: Findings, identity: HubIdentity | None) -> dict[bytes, CheckpointBinding]:
    """Return the claims of checkpoint-binding.json, by label; the seals of the labels confirm them."""
    if identity is None or not fs.exists(layout.CHECKPOINT_BINDING):
        return {}
    try:
        return {bound.label: bound for bound in identities.read_binding(fs, identity)}
    except CorruptError as exc:
        findings.error(exc.path, exc.offset, "rebuildable", exc.what)
        return {}


def check_binding(rules: DirectoryRules) -> None:
    """Check that all bound checkpoints were seen. The file may lag behind, as it is written periodically."""
    findings = rules.findings
    if rules.identity is not None and not rules.fs.exists(layout.CHECKPOINT_BINDING) and findings.counts["chunks"]:
        findings.warning(layout.CHECKPOINT_BINDING, 0, "missing", "the file is missing; the hub writes it")
    for label in sorted(rules.bound):
        what = f"no checkpoint of label {label.hex()} is as bound here"
        findings.error(layout.CHECKPOINT_BINDING, 0, "rebuildable", what)
