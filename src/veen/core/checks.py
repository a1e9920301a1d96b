"""Verification of any single wire object, with the other objects that the check needs.

The check is pure and the same for every front end. `check` returns the list of checks it made, so that a verdict never
claims more than was checked. The first failure is raised as a VerifyError. A check that lacks an input raises
`MissingInput`; it never passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from veen.core.errors import EvidenceError, SignatureError, StatedError, VerifyError
from veen.core.objects import envelopes
from veen.core.objects.captoken import CapToken
from veen.core.objects.card import Prekey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, ControlRecord
from veen.core.objects.evidence import Equivocation, Statement
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Parts
from veen.core.tree.proof import ConsistencyProof, MmrProof, RangeProof
from veen.core.wire import Wire

W = TypeVar("W", bound=Wire)


class MissingInput(StatedError):
    """An input that the check needs was not given, so the object is neither good nor bad."""

    hint = "Give what is missing and verify again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Objects and keys that the verifier has or trusts."""

    hub_pks: tuple[bytes, ...] = ()  # anchored keys of the hub, out of band
    witness_pks: tuple[bytes, ...] = ()
    related: tuple[Wire, ...] = ()  # other objects: the MSG of a RECEIPT, the CHECKPOINT a proof leads to …
    root: bytes | None = None  # a root trusted on other grounds, with the size it stands for
    tree_size: int | None = None
    stream_seq: int | None = None

    def all(self, kind: type[W]) -> list[W]:
        return [obj for obj in self.related if isinstance(obj, kind)]

    def statements(self) -> list[Statement]:
        return [obj for obj in self.related if isinstance(obj, (Receipt, Checkpoint))]


def check(obj: Wire, given: Given) -> list[str]:
    """Return the checks that `obj` passed, in words; raise at the first that fails."""
    for kind, checker in _CHECKERS:
        if isinstance(obj, kind):
            return checker(obj, given)
    return [f"{obj.KIND}: canonical encoding; it carries no signature"]


def _check_msg(msg: Msg, given: Given) -> list[str]:
    msg.check_ct_hash()
    Parts.split(msg.ciphertext)
    msg.verify()
    done = ["ct_hash is the hash of the ciphertext (I1)", "ciphertext is framed and padded as spec §4.2 demands"]
    done.append(f"sig is by client_id {msg.client_id.hex()}")
    for receipt in given.all(Receipt):
        _check_pair(msg, receipt)
        done += _check_receipt(receipt, given)
    return done


def _check_pair(msg: Msg, receipt: Receipt) -> None:
    if receipt.label != msg.label or receipt.leaf_hash != msg.leaf_hash():
        raise VerifyError("the RECEIPT is for another message: its leaf_hash is not that of this MSG (I2)")


def _check_receipt(receipt: Receipt, given: Given) -> list[str]:
    done = [_check_hub_sig(receipt, given)]
    for msg in given.all(Msg):
        _check_pair(msg, receipt)
        done.append(f"leaf_hash is that of the MSG with client_seq {msg.client_seq} (I2)")
    return done


def _check_checkpoint(checkpoint: Checkpoint, given: Given) -> list[str]:
    done = [_check_hub_sig(checkpoint, given)]
    witnessed = checkpoint.verify_witnesses(given.witness_pks)
    for key in given.witness_pks:
        if key not in witnessed:
            raise SignatureError(f"CHECKPOINT: no witness signature verifies under {key.hex()}")
        done.append(f"witnessed by {key.hex()}")
    unknown = len(checkpoint.witness_sigs or ()) - len(witnessed)
    if unknown > 0:  # say what was not looked at: only the holder of a witness's key can tell
        done.append(f"not checked: {unknown} witness signature{'s' if unknown > 1 else ''} by keys not given")
    return done


def _check_hub_sig(signed: Receipt | Checkpoint | ControlRecord, given: Given) -> str:
    if not given.hub_pks:
        raise MissingInput(f"the hub's public key is needed to verify a {signed.KIND}")
    for key in given.hub_pks:
        try:
            signed.verify(key)
        except SignatureError:
            continue
        return f"hub_sig of the {signed.KIND} is by hub key {key.hex()}"
    raise SignatureError(f"{signed.KIND}: hub_sig does not verify under any given hub key")


def _choose_root(given: Given, what: str) -> tuple[bytes, int, list[str]]:
    """Return a root, its size and the checks made: a trusted root, or that of a statement with a valid signature."""
    if given.root is not None and given.tree_size is not None:
        return given.root, given.tree_size, ["root and tree size as given"]
    statements = given.statements()
    if not statements:
        raise MissingInput(f"a RECEIPT, a CHECKPOINT or a trusted root with its tree size is needed to verify a {what}")
    root, size = _claim(statements[-1])
    return root, size, [_check_hub_sig(statements[-1], given)]


def _claim(statement: Statement) -> tuple[bytes, int]:
    size = statement.stream_seq if isinstance(statement, Receipt) else statement.upto_seq
    return statement.mmr_root, size


def _check_proof(proof: MmrProof, given: Given) -> list[str]:
    root, size, done = _choose_root(given, proof.KIND)
    stream_seq, leaf_hash = given.stream_seq or size, proof.leaf_hash
    for receipt in given.all(Receipt):
        if receipt.stream_seq == stream_seq:
            leaf_hash = receipt.leaf_hash
    for msg in given.all(Msg):
        leaf_hash = msg.leaf_hash()
    proof.verify(leaf_hash=leaf_hash, stream_seq=stream_seq, tree_size=size, expected_root=root)
    return [*done, f"leaf {leaf_hash.hex()} is entry {stream_seq} of {size} under root {root.hex()} (I3)"]


def _check_consistency(proof: ConsistencyProof, given: Given) -> list[str]:
    claims = sorted((_claim(statement) for statement in given.statements()), key=lambda claim: claim[1])
    if len(claims) != 2:
        raise MissingInput("two statements (RECEIPT or CHECKPOINT), older and newer, are needed for consistency")
    done = [_check_hub_sig(statement, given) for statement in given.statements()]
    (from_root, from_size), (to_root, to_size) = claims
    proof.verify(from_size=from_size, from_root=from_root, to_size=to_size, to_root=to_root)
    return [*done, f"the log of {to_size} entries only adds to the log of {from_size}"]


def _check_range(proof: RangeProof, given: Given) -> list[str]:
    leaves = {receipt.stream_seq: receipt.leaf_hash for receipt in given.all(Receipt)}
    wanted = range(proof.first_seq, proof.last_seq + 1)
    if len(wanted) > len(leaves) or any(seq not in leaves for seq in wanted):
        raise MissingInput(f"the RECEIPTs {proof.first_seq} to {proof.last_seq} are needed to verify this range_proof")
    root, size, done = _choose_root(given, proof.KIND)
    run = [leaves[seq] for seq in wanted]
    proof.verify(leaves=run, first_seq=proof.first_seq, tree_size=size, expected_root=root)
    return [*done, f"entries {proof.first_seq} to {proof.last_seq} stand under root {root.hex()} of {size}"]


def _check_token(token: CapToken, given: Given) -> list[str]:
    token.verify()
    links = len(token.sig_chain)
    return [f"{links} link{'s' if links > 1 else ''} of sig_chain by issuer {token.issuer_pk.hex()}"]


def _check_prekey(prekey: Prekey, given: Given) -> list[str]:
    prekey.verify()
    return [f"offered until {prekey.expires_at} by identity {prekey.id_sign_pk.hex()}"]


def _check_control(record: ControlRecord, given: Given) -> list[str]:
    done = [_check_hub_sig(record, given)]
    for previous in given.all(ControlRecord):
        record.check_follows(previous)
        done.append(f"continues record {previous.seq}")
    if isinstance(record.body, CapAuthorize):
        done += _check_token(record.body.check(), given)
    return done


def _check_equivocation(evidence: Equivocation, given: Given) -> list[str]:
    evidence.verify()
    for key in evidence.hub_pks:
        if given.hub_pks and key not in given.hub_pks:
            raise EvidenceError(f"equivocation: key {key.hex()} is not a key of the given hub")
    keys = " and ".join(key.hex() for key in evidence.hub_pks)
    return [f"both statements are signed by {keys}", "they contradict each other: the hub equivocated"]


def _check_page(page: envelopes.StreamResponse, given: Given) -> list[str]:
    done: list[str] = []
    previous = None
    for item in page.items:
        if item.msg.label != page.label or (previous is not None and item.stream_seq != previous + 1):
            raise VerifyError(f"stream response: item {item.stream_seq} is out of order or of another label")
        previous = item.stream_seq
        if item.receipt is not None:
            if item.receipt.stream_seq != item.stream_seq:
                raise VerifyError(f"stream response: item {item.stream_seq} carries the RECEIPT of another entry")
            _check_pair(item.msg, item.receipt)
            _check_hub_sig(item.receipt, given)
        item.msg.verify()
        done.append(f"entry {item.stream_seq}: {'MSG and RECEIPT' if item.receipt else 'MSG'}")
    if page.mmr_proof is not None and page.items:
        last = page.items[-1]
        if last.receipt is None:
            raise MissingInput("the page proof needs the RECEIPT of the last entry: ask with with_receipts")
        page.mmr_proof.verify(
            leaf_hash=last.msg.leaf_hash(), stream_seq=last.stream_seq, expected_root=last.receipt.mmr_root
        )
        done.append(f"entry {last.stream_seq} is proven under the root of its RECEIPT")
    return done or ["an empty page"]


def _inner(take: Callable[[W], Wire]) -> Callable[[W, Given], list[str]]:
    return lambda envelope, given: check(take(envelope), given)


_CHECKERS: Sequence[tuple[type[Wire], Callable[..., list[str]]]] = (
    (Msg, _check_msg),
    (Receipt, _check_receipt),
    (Checkpoint, _check_checkpoint),
    (MmrProof, _check_proof),
    (ConsistencyProof, _check_consistency),
    (RangeProof, _check_range),
    (CapToken, _check_token),
    (Prekey, _check_prekey),
    (ControlRecord, _check_control),
    (Equivocation, _check_equivocation),
    (envelopes.StreamResponse, _check_page),
    (envelopes.SubmitRequest, _inner(lambda envelope: envelope.msg)),
    (envelopes.SubmitResponse, _inner(lambda envelope: envelope.receipt)),
    (envelopes.ProofResponse, _inner(lambda envelope: envelope.mmr_proof)),
    (envelopes.CheckpointResponse, _inner(lambda envelope: envelope.checkpoint)),
)
