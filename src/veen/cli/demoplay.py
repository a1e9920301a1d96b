"""The core at work, in memory. Every line is computed; nothing is told that was not done."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from veen.cli.output import Exit, Fail
from veen.cli.tree import proof_tree
from veen.core import cbor, hpke
from veen.core.checkpoint import Checkpoint
from veen.core.ciphertext import Binding, open_msg, seal
from veen.core.ed25519 import SigningKey
from veen.core.errors import VeenError
from veen.core.evidence import Equivocation
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.mmr import MmrTree
from veen.core.msg import Msg
from veen.core.payload_hdr import PayloadHdr
from veen.core.profile import PRESETS
from veen.core.proof import prove_consistency, prove_inclusion
from veen.core.receipt import Receipt

__all__ = ["play"]

BODIES = (b"hello", b"the valve is open", b"transfer 40 to carol", b"the valve is shut", b"good night")
STREAM = "demo/control-room"
STEPS = 6
TAMPERED = 3  # the stream_seq that the demo goes for


@dataclass(frozen=True, slots=True)
class World:
    """The parties and the log."""

    hub: SigningKey
    alice: SigningKey
    bob_sk: bytes
    bob_pk: bytes
    label: bytes
    msgs: list[Msg]
    receipts: list[Receipt]
    tree: MmrTree


def play(*, quiet: bool) -> dict[str, Any]:
    """Run all steps; the facts of each."""
    facts: dict[str, Any] = {}
    say = _narrator(quiet=quiet)
    world = _build(say, facts)
    _prove(world, say, facts)
    _tamper(world, say, facts)
    _equivocate(world, say, facts)
    return facts


def _narrator(*, quiet: bool) -> Callable[..., None]:
    def say(text: str, step: int | None = None) -> None:
        if not quiet:
            click.echo(f"{step}/{STEPS} {text}" if step else f"    {text}")

    return say


def _build(say: Callable[..., None], facts: dict[str, Any]) -> World:
    hub, alice = SigningKey(os.urandom(32)), SigningKey(os.urandom(32))
    bob_sk, bob_pk = hpke.derive_key_pair(os.urandom(32))
    label = label_of(routing_key_of(hub_id_of(hub.public)), stream_id_of(STREAM), 0)
    say(f"keys      hub {_short(hub.public)}, alice {_short(alice.public)}, reader bob {_short(bob_pk)}", 1)
    say(f"stream {STREAM!r} is label {_short(label)} to the hub")

    world = World(hub, alice, bob_sk, bob_pk, label, [], [], MmrTree())
    hub_ts = int(time.time())
    for body in BODIES:
        msg = _send(world, body)
        world.tree.append(msg.leaf_hash())
        world.msgs.append(msg)
        world.receipts.append(
            Receipt.issue(
                hub,
                label=label,
                stream_seq=world.tree.size,
                leaf_hash=msg.leaf_hash(),
                mmr_root=world.tree.root(),
                hub_ts=hub_ts,
            )
        )
    seen_by_hub = b"".join(msg.to_bytes() for msg in world.msgs)
    leaked = [body for body in (*BODIES, STREAM.encode()) if body in seen_by_hub]
    _expect(not leaked, "plaintext reached the hub")
    say(f"send      {len(BODIES)} messages sealed for bob, signed by alice, ordered by the hub", 2)
    say(f"the hub saw {len(seen_by_hub)} bytes; none of the bodies and not the stream's name is among them")
    say("seq  bytes  msg_id     receipt   opened by bob")
    for msg, receipt, body in zip(world.msgs, world.receipts, BODIES, strict=True):
        msg.verify()
        receipt.verify(hub.public)
        opened = open_msg(bob_sk, msg)
        _expect(opened.body == body, "bob read something else")
        text = opened.body.decode()
        say(f"{receipt.stream_seq:<3}  {len(msg.to_bytes()):<5}  {_short(msg.leaf_hash())}  verified  {text!r}")
    facts |= {"messages": len(BODIES), "hub_bytes": len(seen_by_hub), "plaintext_at_hub": len(leaked)}
    return world


def _send(world: World, body: bytes) -> Msg:
    sent = len(world.msgs)
    profile = PRESETS["messaging"]
    binding = Binding(
        profile_id=profile.profile_id(),
        label=world.label,
        client_id=world.alice.public,
        client_seq=sent + 1,
        prev_ack=sent,
        auth_ref=None,
    )
    hdr = PayloadHdr(schema=H(b"demo.text.v1"))
    sealed = seal(world.bob_pk, binding, hdr, body, ikm=os.urandom(32), pad_block=profile.pad_block)
    return Msg.compose(
        world.alice,
        profile_id=binding.profile_id,
        label=binding.label,
        client_seq=binding.client_seq,
        prev_ack=binding.prev_ack,
        auth_ref=None,
        ciphertext=sealed.ciphertext,
    )


def _prove(world: World, say: Callable[..., None], facts: dict[str, Any]) -> None:
    size = world.tree.size
    root = world.tree.root()
    checkpoint = Checkpoint.issue(
        world.hub, label_prev=world.label, label_curr=world.label, upto_seq=size, mmr_root=root, epoch=0
    )
    checkpoint.verify(world.hub.public)
    proof = prove_inclusion(world.tree.node_at, TAMPERED, size)
    proof.verify(
        leaf_hash=world.msgs[TAMPERED - 1].leaf_hash(), stream_seq=TAMPERED, tree_size=size, expected_root=root
    )
    hashes = len(proof.path) + len(proof.peaks_after)
    say(f"proof     message {TAMPERED} of {size}: {hashes} hashes lead to root {_short(root)} of the CHECKPOINT", 3)
    for line in proof_tree(TAMPERED, size):
        say(f"  {line}")
    consistency = prove_consistency(world.tree.node_at, TAMPERED, size)
    consistency.verify(
        from_size=TAMPERED,
        from_root=world.receipts[TAMPERED - 1].mmr_root,
        to_size=size,
        to_root=checkpoint.mmr_root,
    )
    say(f"append    the log of {size} only adds to the log of {TAMPERED}: verified from {TAMPERED}'s receipt", 4)
    facts |= {"root": root.hex(), "proof_hashes": hashes, "proof_bytes": len(proof.to_bytes())}


def _tamper(world: World, say: Callable[..., None], facts: dict[str, Any]) -> None:
    msg, receipt = world.msgs[TAMPERED - 1], world.receipts[TAMPERED - 1]
    flipped = bytearray(msg.ciphertext)
    flipped[100] ^= 0x01
    forged = replace(msg, ciphertext=bytes(flipped))
    say(f"tamper    message {TAMPERED}, one bit flipped; then the forger tries to cover it up", 5)
    caught = {"flip one bit of the ciphertext": _caught(forged.verify)}
    forged = replace(forged, ct_hash=H(forged.ciphertext))
    caught["correct ct_hash as well"] = _caught(forged.verify)
    mallory = SigningKey(os.urandom(32))
    forged = replace(forged, client_id=mallory.public)
    forged = replace(forged, sig=mallory.sign(forged.signing_digest()))
    forged.verify()  # mallory's own signature is good: that is why the leaf must be checked too
    proof = prove_inclusion(world.tree.node_at, TAMPERED)
    caught["sign it with another key"] = _caught(
        lambda: proof.verify(leaf_hash=forged.leaf_hash(), stream_seq=TAMPERED, expected_root=receipt.mmr_root)
    )
    caught["and have bob open it"] = _caught(lambda: open_msg(world.bob_sk, forged))
    for attempt, reason in caught.items():
        say(f"{attempt:<31} {reason}")
    facts["caught"] = caught


def _equivocate(world: World, say: Callable[..., None], facts: dict[str, Any]) -> None:
    honest = world.receipts[TAMPERED - 1]
    other = _send(world, b"transfer 4000 to mallory")
    second = Receipt.issue(
        world.hub,
        label=world.label,
        stream_seq=TAMPERED,
        leaf_hash=other.leaf_hash(),
        mmr_root=other.leaf_hash(),
        hub_ts=honest.hub_ts,
    )
    evidence = Equivocation.of(honest, second, one_pk=world.hub.public)
    packed = evidence.to_bytes()
    Equivocation.from_bytes(packed).verify()
    _expect(cbor.encode(evidence.to_tree()) == packed, "evidence is not canonical")
    say(f"fork      the hub signs a second story for message {TAMPERED}: two receipts convict it", 6)
    say(f"evidence of {len(packed)} bytes, verified with nothing but the hub's public key")
    facts["evidence_bytes"] = len(packed)


def _caught(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except VeenError as exc:
        return f"caught: {exc}"
    raise Fail(Exit.BAD_EVIDENCE, "the demo's forgery was not detected", "a check is broken", "report this", "E.DEMO")


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise Fail(Exit.BAD_EVIDENCE, "the demo went wrong", what, "report this", "E.DEMO")


def _short(data: bytes) -> str:
    text = data.hex()
    return f"{text[:4]}…{text[-4:]}"
