#!/usr/bin/env python3
"""A second opinion on VESN portability sets: one file, the standard library, PyNaCl and cbor2; nothing of veen.

    python tools/vesn_verify.py DIR --hub-pk HEX [--witness HEX]... [--epoch-sec N]...

Written from the text of VESN v0.0.1 and the layout of a set in docs/vesn.md, to be read in one sitting. It keeps a
whole set in memory. Prints OK and exits with 0, or FAILED with the first fault and exits with 1.
"""

import argparse
import hashlib
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import cbor2
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

# One blank line between functions: whoever trusts this file has 200 lines to read, not more.
# fmt: off
Rec = dict[str, Any]
MAX_BYTES, ZERO = 256 * 1024 * 1024, bytes(32)
# Fields with the size of a byte string, or: 1 version, u unsigned integer, b bytes, m map, l list, ? optional.
SHAPES = {
    "MSG": "ver=1 profile_id=32 label=32 client_id=32 client_seq=u prev_ack=u ct_hash=32 ciphertext=b sig=64",
    "RECEIPT": "ver=1 label=32 stream_seq=u leaf_hash=32 mmr_root=32 hub_ts=u hub_sig=64",
    "CHECKPOINT": "ver=1 label_prev=32 label_curr=32 upto_seq=u mmr_root=32 epoch=u hub_sig=64 witness_sigs=?l",
    "cap_token": "ver=1 issuer_pk=32 subject_pk=32 allow=m sig_chain=l",
    "allow": "stream_ids=l ttl=u rate=?m",
    "rate": "per_sec=u burst=u",
    "identity_card": "ver=1 id_sign_pk=32 id_dh_pk=32 sig=64",
    "keystore.enc": "ver=1 salt=32 nonce=24 sealed=b sig=64",
    "routing_secret": "stream_id=32 routing_key=32",
    "sync_state": "last_stream_seq=u last_mmr_root=32",
}
SEQUENCES = {"receipts": "RECEIPT", "payloads": "MSG", "checkpoints": "CHECKPOINT", "cap_tokens": "cap_token"}
TYPES = {"u": int, "b": bytes, "m": dict, "l": list}

class Failed(Exception):
    """The first thing that is wrong."""

def need(holds: Any, what: str) -> None:
    if not holds:
        raise Failed(what)

def h(data: bytes) -> bytes: return hashlib.sha256(data).digest()
def ht(tag: str, *data: bytes) -> bytes: return h(f"vesn/{tag}".encode() + b"\x00" + b"".join(data))
def u64(value: int) -> bytes: return value.to_bytes(8, "big")
def canonical(value: Any) -> bytes: return cbor2.dumps(value, canonical=True)  # keys by length, then bytewise

def good(pk: bytes, digest: bytes, sig: Any) -> bool:
    try:
        return bool(VerifyKey(pk).verify(digest, sig))
    except (CryptoError, ValueError, TypeError):
        return False

def is_signed(pks: list[bytes], sig: Any, record: Rec, *omit: str) -> bool:
    digest = ht("sig", canonical({key: value for key, value in record.items() if key not in omit}))
    return any(good(pk, digest, sig) for pk in pks)

def check_shape(record: Any, kind: str) -> Rec:
    shape = dict(field.split("=") for field in SHAPES[kind].split())
    needed = {name for name, what in shape.items() if what[0] != "?"}
    need(type(record) is dict and needed <= set(record) <= set(shape), f"{kind}: wrong fields")
    for name, value in record.items():
        what = shape[name].lstrip("?")
        fits = type(value) is TYPES.get(what, int if what == "1" else bytes)
        fits = fits and (what != "u" or 0 <= value < 2**64) and (what != "1" or value == 1)
        need(fits and (not what.isdigit() or what == "1" or len(value) == int(what)), f"{kind}: {name}")
    return dict(record)

def records(data: bytes, kind: str) -> list[Rec]:
    """Yield the records of a CBOR sequence; each must be its own canonical encoding."""
    decoder, position, items = cbor2.CBORDecoder(BytesIO(data)), 0, list[Rec]()
    while position < len(data):
        try:
            value = decoder.decode()
            again = canonical(value)
        except Exception as exc:  # whatever cbor2 says about bytes that are not CBOR
            raise Failed(f"{kind} {len(items) + 1}: not CBOR ({type(exc).__name__})") from exc
        need(data.startswith(again, position), f"{kind} {len(items) + 1}: not canonical")
        position += len(again)
        items.append(check_shape(value, kind))
    return items

class Tree:
    """Perfect trees, the largest first; the root hashes them the smallest first, also a single one."""

    def __init__(self) -> None:
        self.peaks: list[tuple[int, bytes]] = []
        self.size = 0

    def append(self, leaf: bytes) -> bytes:
        self.size += 1
        self.peaks.append((0, leaf))
        while len(self.peaks) > 1 and self.peaks[-1][0] == self.peaks[-2][0]:
            (height, right), (_, left) = self.peaks.pop(), self.peaks.pop()
            self.peaks.append((height + 1, ht("mmr-node", left, right)))
        return ht("mmr-root", *(peak for _, peak in reversed(self.peaks)))

def check_token(token: Rec) -> None:
    allow, chain, previous = check_shape(token["allow"], "allow"), token["sig_chain"], ZERO
    check_shape(allow.get("rate", {"per_sec": 0, "burst": 0}), "rate")
    need(allow["stream_ids"] and all(type(x) is bytes and len(x) == 32 for x in allow["stream_ids"]), "stream_ids")
    need(chain and all(type(x) is bytes for x in chain), "sig_chain")
    for link in chain:
        digest = ht("cap-link", token["issuer_pk"], token["subject_pk"], canonical(allow), previous)
        need(good(token["issuer_pk"], digest, link), "cap_token: a link of the chain")
        previous = h(link)

def verify(files: dict[str, bytes], hubs: list[bytes], witnesses: list[bytes], epoch_secs: list[int]) -> int:
    """Return the number of entries; raise Failed if anything is wrong."""
    single, rest = {}, set(files)
    for name in {"identity_card", "keystore.enc", "routing_secret", "sync_state"} & rest:
        content = records(files[name], name)
        need(len(content) == 1, f"{name}: expected one record")
        single[name] = content[0]
    log = {name: records(files.get(f"{name}.cborl", b""), kind) for name, kind in SEQUENCES.items()}
    for name in rest - set(single) - {f"{name}.cborl" for name in SEQUENCES}:
        need(name == f"attachments/{h(files[name]).hex()}", f"{name}: not a file of a set, or not its coid")
    need({"receipts.cborl", "sync_state"} <= rest, "receipts.cborl or sync_state is missing")
    card, keystore, routing = (single.get(name) for name in ("identity_card", "keystore.enc", "routing_secret"))
    owner = [card["id_sign_pk"]] if card else []
    need(card is None or is_signed(owner, card["sig"], card, "sig"), "identity_card: sig")
    need(keystore is None or is_signed(owner, keystore["sig"], keystore, "sig"), "keystore.enc: sig")
    for token in log["cap_tokens"]:
        check_token(token)
    checkpoints, omit = sorted(log["checkpoints"], key=lambda c: c["epoch"]), ("hub_sig", "witness_sigs")

    def labels(epochs: set[int]) -> set[bytes]:
        assert routing is not None  # noqa: S101 - for the type checker
        return {ht("label", routing["routing_key"], routing["stream_id"], u64(e)) for e in epochs if 0 <= e < 2**64}

    for c in checkpoints:
        need(is_signed(hubs, c["hub_sig"], c, *omit), "CHECKPOINT: hub_sig")
        need(c.get("witness_sigs", ["none"]), "CHECKPOINT: witness_sigs is empty")
        need(all(is_signed(witnesses, sig, c, *omit) for sig in c.get("witness_sigs", [])), "CHECKPOINT: witness_sigs")
        need(routing is None or c["label_curr"] in labels({c["epoch"]}), "CHECKPOINT: label_curr")
    profile = {
        "aead": "xchacha20poly1305",
        "kdf": "hkdf-sha256",
        "sig": "ed25519",
        "dh": "x25519",
        "mmr_hash": "sha256",
    }
    profiles = {ht("profile", canonical({**profile, "epoch_sec": length, "pad_block": 0})) for length in epoch_secs}
    need(len(log["payloads"]) == len(log["receipts"]), "not as many payloads as receipts")
    last, label, tree, roots, clients = (0, ZERO), b"", Tree(), {}, dict[bytes, int]()
    for r, m in zip(log["receipts"], log["payloads"], strict=True):
        seq = r["stream_seq"]
        if r["label"] != label:  # a checkpoint links the labels, or a new tree begins
            reached = {label}
            for c in checkpoints:
                reached |= {c["label_curr"]} if c["upto_seq"] == tree.size and c["label_prev"] in reached else set()
            label, tree = r["label"], tree if r["label"] in reached else Tree()
            epochs = {r["hub_ts"] // length + step for length in epoch_secs if length for step in (-1, 0, 1)}
            epochs |= {0, *(c["epoch"] for c in checkpoints if c["label_curr"] == label)}
            need(routing is None or label in labels(epochs), f"{seq}: label")
        need(is_signed(hubs, r["hub_sig"], r, "hub_sig"), f"{seq}: hub_sig")
        need(m["label"] == label and is_signed([m["client_id"]], m["sig"], m, "sig"), f"{seq}: sig")
        need(h(m["ciphertext"]) == m["ct_hash"], f"{seq}: I1")
        need(ht("leaf", m["ct_hash"], m["client_id"], u64(m["client_seq"])) == r["leaf_hash"], f"{seq}: I2")
        need(tree.append(r["leaf_hash"]) == r["mmr_root"] and tree.size == seq, f"{seq}: I3")
        need(m["profile_id"] in profiles, f"{seq}: I4")
        need(m["prev_ack"] < max(seq, last[0] + 1), f"{seq}: I6")
        need(clients.get(m["client_id"], -1) < m["client_seq"], f"{seq}: client_seq")
        clients[m["client_id"]], last = m["client_seq"], (seq, r["mmr_root"])
        roots[label, seq] = r["mmr_root"]
    for c in checkpoints:
        there = [roots.get((c[name], c["upto_seq"])) for name in ("label_prev", "label_curr")]
        need(c["mmr_root"] in there, f"CHECKPOINT at {c['upto_seq']}: mmr_root")
        roots.setdefault((c["label_curr"], c["upto_seq"]), c["mmr_root"])  # epochs without a message
    need((single["sync_state"]["last_stream_seq"], single["sync_state"]["last_mmr_root"]) == last, "sync_state")
    return len(log["receipts"])

def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verify a VESN portability set.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hub-pk", type=bytes.fromhex, action="append", required=True)
    parser.add_argument("--witness", type=bytes.fromhex, action="append", default=[])
    parser.add_argument("--epoch-sec", type=int, action="append", default=[60, 0])
    options = parser.parse_args(arguments)
    try:
        files = {}
        for path in options.directory.rglob("*"):
            need(not path.is_symlink() and (path.is_file() or path.is_dir()), f"{path.name}: not a regular file")
            need(path.stat().st_size <= MAX_BYTES, f"{path.name}: too large")
            if path.is_file():
                files[path.relative_to(options.directory).as_posix()] = path.read_bytes()
        print(f"OK: {verify(files, options.hub_pk, options.witness, options.epoch_sec)} entries")
    except Failed as exc:
        print(f"FAILED: {exc}")
        return 1
    return 0

if __name__ == "__main__":
    sys.exit(main())
