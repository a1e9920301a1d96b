"""What the tests of the client library share: cheap keys, randomness that repeats, and a hub's log in a few lines."""

import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import shake_128
from pathlib import Path

from veen.client.identity.identity import Identity, Random
from veen.client.identity.passphrases import Kdf
from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr

CHEAP = Kdf(memory_kib=8, passes=1)  # argon2id as it is, at a cost that tests can pay
NOW = 1_700_000_000
PROFILE_ID = PRESETS["messaging"].profile_id()
PASSPHRASE = "correct horse battery staple"


def seeded(seed: str) -> Random:
    """Bytes that are the same in every run."""
    drawn = 0

    def random(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return shake_128(f"{seed}/{drawn}".encode()).digest(size)

    return random


def identity(name: str = "alice") -> Identity:
    return Identity.create(name, now=NOW, random=seeded(name))


class HubLog:
    """A hub that signs what it is given, and nothing else."""

    def __init__(self, seed: int = 1) -> None:
        self.key = SigningKey(bytes([seed]) * 32)
        self.identity = HubIdentity.first(self.key.public, valid_from=0)
        self.hub_id = self.identity.hub_id
        self.trees: dict[bytes, Mmr] = {}

    def label(self, stream: str, epoch: int = 0) -> bytes:
        return label_of(routing_key_of(self.hub_id), stream_id_of(stream), epoch)

    def admit(self, msg: Msg, hub_ts: int = NOW) -> Receipt:
        tree = self.trees.setdefault(msg.label, Mmr())
        tree.append(msg.leaf_hash())
        return Receipt.issue(
            self.key,
            label=msg.label,
            stream_seq=tree.size,
            leaf_hash=msg.leaf_hash(),
            mmr_root=tree.root(),
            hub_ts=hub_ts,
        )

    def checkpoint(self, label: bytes) -> Checkpoint:
        tree = self.trees[label]
        return Checkpoint.issue(
            self.key, label_prev=label, label_curr=label, upto_seq=tree.size, mmr_root=tree.root(), epoch=0
        )


def message(
    key: SigningKey, label: bytes, client_seq: int, prev_ack: int = 0, ciphertext: bytes = b"sealed" * 8
) -> Msg:
    return Msg.compose(
        key,
        profile_id=PROFILE_ID,
        label=label,
        client_seq=client_seq,
        prev_ack=prev_ack,
        auth_ref=None,
        ciphertext=ciphertext,
    )


def process(code: str, *args: object) -> "subprocess.Popen[str]":
    """Another process, running these lines."""
    source = Path(__file__).resolve().parents[2] / "src"
    command: Sequence[str] = (sys.executable, "-c", code, *map(str, args))
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(source)}
    )


def line(child: "subprocess.Popen[str]") -> str:
    """The next line that a process says."""
    assert child.stdout is not None
    return child.stdout.readline()


def killed(child: "subprocess.Popen[str]") -> list[str]:
    """End a process with SIGKILL; the whole lines that it still had said."""
    child.kill()
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    with child.stdout as out:
        said = [line for line in out if line.endswith("\n")]
    child.wait()
    return said
