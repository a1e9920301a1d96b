"""Checks VEEN objects and evidence files with none of VEEN's own code (spec v0.0.1, docs/evidence.md).

Written from the specification as a second opinion: one file, the standard library, PyNaCl and cbor2. Objects may be
CBOR, hex text or the JSON form. The verdict is one line, OK or FAILED with the reason; the exit status is 0 if all is
verified, 1 if it is not or the content is no such object, 2 for wrong usage or a file that cannot be read.

The published vectors are checked by the programs beside it, which use its functions: veen_verify_vectors.py,
veen_verify_beyond.py and veen_verify_histories.py.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from hmac import digest as mac
from itertools import pairwise
from pathlib import Path
from typing import Any

import cbor2
from nacl import bindings as sodium
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as xdecrypt
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

# One blank line between functions, none between one-liners: whoever trusts this file has at most 500 lines to read.
# fmt: off
TYPE, SIZE, VERSION = "E.FORMAT structural CBOR_INVALID", "E.SIZE structural FIELD_SIZE", "E.FORMAT structural VERSION"

class Failed(Exception):
    """A failed check: a sentence; code, stage and detail_enum, or the vectors' word for it; further details."""

def require(condition: object, what: str, code: str = "-") -> None:
    if not condition:
        raise Failed(what, code, {})

# --- Objects are the trees that deterministic CBOR decodes to; a shape is a pattern for the outline of such a tree. ---
# Outline: v version, u uint, b bytes (b32: so many), t text, =x the text x, n null, <…> array, «key:…» map.
RECEIPT, CHECKPOINT = "<v b32 u b32 b32 u b64 >", "<v b32 b32 u b32 u b64 (<(b64 ){1,16}> )?>"
SHAPES = {
    "MSG": "<v b32 b32 b32 u u (b32|n) b32 b b64 >", "RECEIPT": RECEIPT, "CHECKPOINT": CHECKPOINT,
    "control record": "<v u =cap.authorize u b32 «1:b32 2:b32 3:b » b64 >",
    "rotation": "<v u =key.rotate u b32 «1:b32 2:u (3:b32 )?(4:u )?» b64 >",
    "mmr_proof": "«1:v 2:b32 3:<(«1:u 2:b32 » ){0,64}> 4:<(b32 ){0,64}> »",
    "consistency_proof": "«1:v 2:u 3:u 4:<(b32 ){0,64}> 5:<(b32 ){0,128}> »",
    "range_proof": "«1:v 2:u 3:u 4:u 5:<(b32 ){0,64}> 6:<(b32 ){0,128}> »",
    "cap_token": "«1:v 2:b32 3:b32 4:«1:<(b32 ){1,1024}> 2:u (3:«1:u 2:u » )?» 5:<(b64 ){1,8}> »",
    "equivocation": f"«1:v 2:<(b32 ){{1,2}}> 3:({RECEIPT}|{CHECKPOINT}) 4:({RECEIPT}|{CHECKPOINT}) »",
    "profile": "«1:=xchacha20poly1305 2:=hkdf-sha256 3:=ed25519 4:=x25519 5:=X25519-HKDF-SHA256-CHACHA20POLY1305 "
               "6:u 7:u 8:=sha256 »",
    "payload_hdr": "«1:b32 (2:b32 )?(3:b32 )?(4:b32 )?(5:u )?»",
    "veen.attached.v1": "«=body:b =attachments:<(«=coid:b32 =size:u (=name:t )?(=media_type:t )?» ){0,1024}> »",
}
# The names of map fields in the JSON form, by the kind or the field they are in; bodies keep them in CBOR as well.
NAMES = dict(row.split(": ") for row in """mmr_proof: ver leaf_hash path peaks_after; path: dir sib
consistency_proof: ver from_size to_size peaks added; range_proof: ver first_seq last_seq tree_size before after
cap_token: ver issuer_pk subject_pk allow sig_chain; allow: stream_ids ttl rate; rate: per_sec burst
profile: aead kdf sig dh hpke_suite epoch_sec pad_block mmr_hash; equivocation: ver hub_pks first second
payload_hdr: schema parent_id att_root cap_ref expires_at; control record: auth_ref token_hash token
veen.attached.v1: body attachments; attachments: coid size name media_type""".replace("\n", "; ").split("; "))

def outline(tree: Any) -> str:
    """Text is shown in hex, so no text can pretend to be structure."""
    kind = type(tree)
    if kind is list:
        return f"<{''.join(outline(item) + ' ' for item in tree)}>"
    if kind is dict:
        return f"«{''.join(f'{key if type(key) is int else outline(key)}:{outline(tree[key])} ' for key in tree)}»"
    if kind is int and 0 <= tree < 1 << 64:
        return f"u{tree}"
    return f"b{len(tree)}" if kind is bytes else f"t{tree.encode().hex()}" if kind is str else "?n"[tree is None]

def matches(shape: str, text: str, sizes: bool = True, version: bool = True) -> bool:
    """Return True if an outline has this shape, with or without regard to sizes and to the version."""
    shape = re.sub(r"=([\w.-]+)", lambda literal: "t" + literal[1].encode().hex(), shape)
    shape = shape if sizes else re.sub(r"\{\d+,\d+\}", "*", re.sub(r"\bb\d+\b", "b", shape))
    for token, real in (("b", r"b\\d+"), ("u", r"u\\d+"), ("t", "t[0-9a-f]*"), ("v", "u1" if version else r"u\\d+")):
        shape = re.sub(rf"\b{token}\b", real, shape)
    return re.fullmatch(shape, text) is not None

def check(kind: str, tree: Any) -> Any:
    """Raise the most important fault: a wrong type outranks a wrong size, and that an unknown version (§8.2)."""
    shape, text = SHAPES[kind], outline(tree)
    require(matches(shape, text, sizes=False, version=False), f"not a well-formed {kind}", TYPE)
    ids = tree[4][1] if kind == "cap_token" else []
    require(ids == sorted(set(ids)), "stream_ids do not ascend", TYPE)
    require(kind != "MSG" or padding_of(tree[8]) is not None, "the ciphertext does not hold its parts", SIZE)
    require(matches(shape, text, version=False), f"{kind}: something has a wrong size", SIZE)
    require(matches(shape, text), f"{kind}: unknown version", VERSION)
    return tree

def from_cbor(kind: str, data: bytes) -> Any:
    """Deterministic CBOR (§3.1) is what encodes back to the same bytes, once the types are known to be allowed."""
    try:
        tree = cbor2.loads(data)
        require(cbor2.dumps(tree) == data, "CBOR is not in its one form, or bytes follow it", TYPE)
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError, RecursionError) as exc:
        raise Failed("not deterministic CBOR", TYPE, {}) from exc
    return check(kind, tree)

def from_json(kind: str, value: Any) -> Any: return check(kind, tree_from(value, kind))
def tree_from(value: Any, kind: str) -> Any:
    if type(value) is list:
        return [tree_from(item, kind) for item in value]
    if type(value) is dict:
        names = NAMES.get(kind, "").split()
        fields = {name: tree_from(value[name], name) for name in sorted(value, key=(names + list(value)).index)}
        return fields if "attach" in kind else {names.index(n) + 1 if n in names else n: v for n, v in fields.items()}
    return x(value) if type(value) is str and re.fullmatch("(?:[0-9a-f]{2})*", value) else value

def to_json(value: Any, kind: str = "") -> Any:
    if isinstance(value, (list, tuple)):
        return [to_json(item, kind) for item in value]
    if isinstance(value, dict):
        names = {key: key if type(key) is str else NAMES[kind].split()[key - 1] for key in value}
        return {name: to_json(value[key], name) for key, name in names.items()}
    return value.hex() if isinstance(value, bytes) else value

def padding_of(ciphertext: bytes) -> bytes | None:
    """Return the bytes after the parts of a ciphertext; None if they do not fit, or are above a limit (§4.2, §14)."""
    hdr, body = (int.from_bytes(ciphertext[at : at + 4], "big") for at in (32, 36))
    fits = 40 <= 40 + hdr + body <= len(ciphertext) and hdr <= 16_384 and body <= 1_048_320
    return ciphertext[40 + hdr + body :] if fits else None

# --- Hashes (§3.3), signatures, HPKE (RFC 9180, base mode, empty info). ---
def x(text: str) -> bytes: return bytes.fromhex(text)
def h(*parts: bytes) -> bytes: return sha256(b"".join(parts)).digest()
def ht(tag: str, *parts: bytes) -> bytes: return h(tag.encode(), b"\x00", *parts)
def u64(value: int) -> bytes: return value.to_bytes(8, "big")
def stream_id_of(name: str) -> bytes: return x(name) if re.fullmatch("[0-9a-fA-F]{64}", name) else h(name.encode())

def is_signed_by(public: bytes, digest: bytes, signature: bytes) -> bool:
    try:
        return VerifyKey(public).verify(digest, signature) == digest
    except CryptoError:
        return False

def digest_of(tree: list[Any]) -> bytes:
    """Return the digest that signs a MSG, RECEIPT, CHECKPOINT or control record; a control record has text at 2."""
    return ht(f"veen/{'control' if type(tree[2]) is str else 'sig'}", cbor2.dumps(tree[: 9 if len(tree) == 10 else 6]))

def leaf_of(msg: list[Any]) -> bytes:
    _, profile_id, label, client_id, client_seq, _, _, ct_hash, _, _ = msg
    return ht("veen/leaf", label, profile_id, ct_hash, client_id, u64(client_seq))

def link_digests(token: dict[int, Any]) -> list[bytes]:
    unsigned = cbor2.dumps({key: value for key, value in token.items() if key != 5})
    return [ht("veen/cap-link", unsigned, prev_sig) for prev_sig in (bytes(64), *token[5][:-1])]

SUITE = b"HPKE-v1HPKE\x00\x20\x00\x01\x00\x03"
def expand(prk: bytes, info: bytes, n: int = 32) -> bytes: return mac(prk, bytes((0, n)) + info + b"\x01", "sha256")[:n]

def context_of(shared: bytes) -> tuple[bytes, bytes, Callable[[bytes], bytes]]:
    context = b"\x00" + b"".join(mac(b"", SUITE + label, "sha256") for label in (b"psk_id_hash", b"info_hash"))
    secret = mac(shared, SUITE + b"secret", "sha256")
    exporter = expand(secret, SUITE + b"exp" + context)
    key, nonce = expand(secret, SUITE + b"key" + context), expand(secret, SUITE + b"base_nonce" + context, 12)
    return key, nonce, lambda info: expand(exporter, SUITE + b"sec" + info)

# --- The Merkle mountain range (§5). A block is a perfect tree: how many leaves it has, and its hash. ---
def fold(blocks: Iterable[tuple[int, bytes]], tag: str = "veen/mmr-node") -> list[bytes]:
    """Return the peaks, by increasing height, of blocks that begin at leaf 0 without a gap."""
    stack: list[tuple[int, bytes]] = []
    for size, node in blocks:
        while stack and stack[-1][0] == size:
            size, node = 2 * size, ht(tag, stack.pop()[1], node)
        stack.append((size, node))
    return [node for _, node in reversed(stack)]

def root_of(peaks: Sequence[bytes]) -> bytes: return peaks[0] if len(peaks) == 1 else ht("veen/mmr-root", *peaks)
def ones(leaves: Iterable[bytes]) -> list[tuple[int, bytes]]: return [(1, leaf) for leaf in leaves]
def att_root_of(coids: Iterable[bytes]) -> bytes: return ht("veen/att-root", *fold(ones(coids), "veen/att-node"))

def cover(start: int, end: int, nodes: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """`nodes` as the largest aligned blocks over the leaves start … end - 1."""
    sizes = []
    while start < end:
        sizes.append(max(1 << k for k in range(64) if start % (1 << k) == 0 and start + (1 << k) <= end))
        start += sizes[-1]
    require(len(sizes) == len(nodes), f"the proof must have {len(sizes)} subtrees here, not {len(nodes)}")
    return list(zip(sizes, nodes, strict=True))

def check_inclusion(proof: dict[int, Any], leaf: bytes, seq: int, size: int, root: bytes) -> None:
    """§5.4, with the size that the root stands for (D-32 … D-35)."""
    require(1 <= seq <= size, f"there is no entry {seq} in a log of {size}")
    require(proof[2] == leaf, "the proof is for another leaf")
    heights = [height for height in range(size.bit_length()) if size >> height & 1]
    own = next(height for height in heights if seq > size >> (height + 1) << (height + 1))
    require(len(proof[3]) == own, f"the path must have {own} steps")
    node = leaf
    for height, step in enumerate(proof[3]):
        require(step[1] == (seq - 1) >> height & 1, "a step of the path has the wrong direction")
        node = ht("veen/mmr-node", *((step[2], node) if step[1] else (node, step[2])))
    peaks = list(proof[4])
    peaks.insert(heights.index(own), node)
    require(len(set(peaks)) == len(peaks) == len(heights), "the peaks do not fit the size")
    require(root_of(peaks) == root, "the proof does not lead to the root")

def check_msg(msg: list[Any]) -> None:
    require(h(msg[8]) == msg[7], "ct_hash is not the hash of the ciphertext", "E.FORMAT structural CT_HASH")
    require(not any(padding_of(msg[8]) or b""), "padding is not zero", "E.FORMAT structural CT_PADDING")
    require(is_signed_by(msg[3], digest_of(msg), msg[9]), "sig is not that of client_id", "E.SIG auth SIG_INVALID")

def check_signed(tree: list[Any], *keys: bytes) -> None:
    require(any(is_signed_by(key, digest_of(tree), tree[6]) for key in keys), "hub_sig is not the hub's", "hub_sig")

def check_equivocation(evidence: dict[int, Any]) -> None:
    hub_pks, first, two = evidence[2], evidence[3], evidence[4]
    require(cbor2.dumps(first) < cbor2.dumps(two), "the statements are not in the order of their bytes", "order")
    require(len(set(hub_pks)) == len(hub_pks), "a key is listed twice", "hub_pks")
    check_signed(first, hub_pks[0])
    check_signed(two, hub_pks[-1])
    places = [s[1:3] if type(s[2]) is int else s[2:4] for s in (first, two)]  # a number at 2 makes it a RECEIPT
    require(places[0] == places[1], "the statements are about different positions", "position")
    require(first[4] != two[4] or (type(first[2]) is type(two[2]) is int and first[3] != two[3]), "they agree", "agree")

# --- Evidence files (docs/evidence.md), in the order of the checks there. ---
FILE_MAGIC, MAX_FILE, MAX_ENTRIES = b"\x84\x6dveen-evidence", 1 << 26, 65_536
BODY = ("«1:b 2:b64 3:<(b ){0,1023}> (4:b32 )?(5:t )?6:<(b ){1,16}> 7:<(L ){1,1024}> "
        "(8:<(<(=tlog-proof|=cose-receipt|=rfc3161) b32 b > ){1,256}> )?»")
LOG, RUN = "«1:b32 2:u 3:<(b ){1,16}> 4:<(b ){0,15}> 5:<(R ){1,65536}> »", "«1:b 2:<(E ){1,65536}> »"
ENTRY = "<b b (b32 |<b b > )?>"

def check_evidence(data: bytes, hub_pk: bytes | None, hub_id: bytes | None) -> str:
    require(len(data) <= MAX_FILE, f"the file is larger than {MAX_FILE} bytes")
    require(data.startswith(FILE_MAGIC), "not an evidence file")
    require(data[15:16] == b"\x01", "another version of the format")
    frame = plain_cbor(data)
    require(matches("<t u b b32 >", outline(frame)), "the frame of the file")
    require(ht("veen/evidence", frame[2]) == frame[3], "the file is damaged: its digest does not match")
    body = plain_cbor(frame[2])
    require(type(body) is dict and type(body.get(7)) is list, "the body of the file")
    require(matches(BODY.replace("L", "n"), outline({**body, 7: [None] * len(body[7])})), "the body of the file")
    for log in body[7]:
        hollow = {**log, 5: [None] * len(log[5])}
        require(matches(LOG.replace("R", "n"), outline(hollow)), "a log of the file")
        for run in log[5]:
            require(matches(RUN.replace("E", "n"), outline({**run, 2: [None] * len(run[2])})), "a run of the file")
            require(all(matches(ENTRY, outline(entry)) for entry in run[2]), "an entry of the file")
    require(sum(len(run[2]) for log in body[7] for run in log[5]) <= MAX_ENTRIES, f"more than {MAX_ENTRIES} entries")
    hub, signers = check_hub(body, hub_pk, hub_id)
    salt, stream, name = ht("veen/routing_key", x(hub["hub_id"])), body.get(4), body.get(5)
    require(name is None or (name and stream_id_of(name) == stream), "stream_id is not that of stream_name")
    profiles = {ht("veen/profile", raw): from_cbor("profile", raw) for raw in body[6]}
    require(list(profiles) == sorted(profiles) and len(profiles) == len(body[6]), "profiles are not sorted")
    require(len({profile[6] for profile in profiles.values()}) == 1, "the profiles differ in epoch_sec")
    places = [(log[2], log[1]) for log in body[7]]
    require(places == sorted(set(places)), "logs are not sorted")
    used, kinds, ranges = set[bytes](), list[str](), list[str]()
    for log in body[7]:
        require(stream is None or log[1] == ht("veen/label", salt, stream, u64(log[2])), "a label is not the stream's")
        size, root = check_log(log, signers, next(iter(profiles.values()))[6], stream, salt)
        authors, end, shown = dict[bytes, tuple[int, int, int]](), -1, 0
        for run in log[5]:
            proof = from_cbor("range_proof", run[1])
            require(end < proof[2] - 1, "runs do not ascend with a gap between them")
            end = proof[3]
            ranges.append(f"{proof[2]}..{proof[3]}")
            unseen, shown = proof[2] - 1 - shown, shown + len(run[2])
            for msg, content in check_run(run, proof, log[1], size, root, signers, profiles, authors, unseen):
                used.add(msg[1])
                kinds.append("sealed" if not content else "stated" if type(content[0]) is list else "opened")
                check_content(msg, content)
    require(used == set(profiles), "a profile is listed that no entry names")
    points = {h(raw) for log in body[7] for raw in log[3]}
    require(all(row[1] in points and len(row[2]) <= 65_536 for row in body.get(8, [])), "a proof by others")
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    whose = f"hub {hub['hub_id']}" if hub_pk else "a hub whose key was not given (--hub-pk)"
    return f"evidence of {len(kinds)} entries ({counts}), {' '.join(ranges)} of {name or 'a stream'}, by {whose}"

def plain_cbor(data: bytes) -> Any:
    try:
        tree = cbor2.loads(data)
        require(cbor2.dumps(tree) == data, "CBOR is not in its one form, or bytes follow it")
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError, RecursionError) as exc:
        raise Failed("not deterministic CBOR, or the file ends too early", TYPE, {}) from exc
    return tree

def check_hub(body: Any, hub_pk: bytes | None, hub_id: bytes | None) -> tuple[Any, list[Any]]:
    """Return the identity, and those of its keys that the given one leads to (§8.4)."""
    raw = body[1]
    hub = json.loads(raw)
    canonical = json.dumps(hub, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    keys = hub["hub_keys"]
    require(canonical == raw and hub["ver"] == 1, "the identity is not in its canonical form")
    require(hub.keys() == {"ver", "hub_id", "anchoring", "hub_keys"}, "members of the identity")
    require(hub["anchoring"] in ("data-directory", "fingerprint", "certificate"), "anchoring of the identity")
    require(hub["hub_id"] == ht("veen/hub-id", x(keys[0]["hub_pk"])).hex(), "hub_id is not that of the first key")
    require(keys == sorted(keys, key=lambda key: (key["valid_from"], key["hub_pk"])), "keys are not sorted")
    require(len({key["hub_pk"] for key in keys}) == len(keys), "a key is listed twice")
    for key in keys:
        public, times = x(key["hub_pk"]), [key["valid_from"], key.get("valid_until", 1 << 63)]
        require(key["key_id"] == h(public).hex()[:16] and len(public) == 32, "a key of the identity")
        require(key.keys() - {"valid_until"} == {"hub_pk", "key_id", "valid_from"}, "members of a key")
        require(type(times[0]) is type(times[1]) is int and 0 <= times[0] < times[1], "times of a key")
    pairs, seqs = list(pairwise(keys)), list[int]()
    trusted = {x(keys[0]["hub_pk"]) if hub_id else hub_pk}
    for raw in body[3]:
        record = from_cbor("rotation", raw)
        new, valid_from, old, until = (record[5].get(key) for key in (1, 2, 3, 4))
        listed = [x(a["hub_pk"]) == old and x(b["hub_pk"]) == new and b["valid_from"] == valid_from
                  and a.get("valid_until") == until for a, b in pairs]
        require(any(listed) and is_signed_by(old, digest_of(record), record[6]), "a rotation of the hub's keys")
        trusted |= {new} if old in trusted else set()
        seqs.append(record[1])
    require(seqs == sorted(set(seqs)), "rotations are not in their order")
    current = x(min(keys, key=lambda key: (-key["valid_from"], key["hub_pk"]))["hub_pk"])
    require(hub_id is None or hub["hub_id"] == hub_id.hex(), "this is another hub: its hub_id is not the given one")
    reached = trusted & {x(key["hub_pk"]) for key in keys}
    require(not hub_pk or {hub_pk, current} <= reached, "the given key is not this hub's, or leads to no key of it")
    require(is_signed_by(current, ht("veen/hub-identity", body[1]), body[2]), "the identity is not signed by its key")
    return hub, [key for key in keys if not hub_pk or x(key["hub_pk"]) in trusted]

def is_signed_then(tree: list[Any], keys: list[Any], start: int, end: int) -> bool:
    """Return True if one of the keys valid at some time in start … end - 1 signed; any key if that is empty."""
    valid = [k for k in keys if start == end or (k["valid_from"] < end and start < k.get("valid_until", 1 << 64))]
    return any(is_signed_by(x(key["hub_pk"]), digest_of(tree), tree[6]) for key in valid)

def check_log(log: Any, keys: list[Any], span: int, stream: Any, salt: bytes) -> tuple[int, bytes]:
    points, epoch = [from_cbor("CHECKPOINT", raw) for raw in log[3]], log[2]
    before = ht("veen/label", salt, stream, u64(epoch - 1)) if stream and epoch else log[1]
    for point in points:
        require(point[2] == log[1] and point[5] == epoch, "a CHECKPOINT is about another log")
        require(stream is None or point[1] in (log[1], before), "label_prev of a CHECKPOINT")
        good = is_signed_then(point, keys, epoch * span, (epoch + 1) * span)
        require(good, "a CHECKPOINT is not signed by the hub")
    sizes = [point[3] for point in points]
    require(sizes == sorted(set(sizes)) and len(log[4]) == len(points) - 1, "checkpoints and consistency do not fit")
    for raw, old, new in zip(log[4], points, points[1:], strict=False):
        _, from_size, to_size, peaks, added = from_cbor("consistency_proof", raw).values()
        require([from_size, to_size] == [old[3], new[3]] and root_of(peaks) == old[4], "a consistency_proof")
        whole = cover(0, from_size, peaks[::-1]) + cover(from_size, to_size, added)
        require(root_of(fold(whole)) == new[4], "the log did not only grow between two checkpoints")
    return points[0][3], points[0][4]

def check_run(run: Any, proof: Any, label: bytes, size: int, root: bytes, keys: list[Any], profiles: Any,
              authors: dict[bytes, tuple[int, int, int]], unseen: int) -> list[tuple[list[Any], list[Any]]]:
    _, first, last, tree_size, before, after = proof.values()
    require(1 <= first <= last <= size == tree_size and last - first + 1 == len(run[2]), "a range with a gap")
    blocks, result = cover(0, first - 1, before[::-1]), []
    for seq, (raw_msg, raw_receipt, *content) in enumerate(run[2], start=first):
        msg, receipt = from_cbor("MSG", raw_msg), from_cbor("RECEIPT", raw_receipt)
        require(receipt[2] == seq, f"entry {seq} is missing or not at its place")
        require(msg[2] == receipt[1] == label and msg[1] in profiles, f"entry {seq} is of another stream")
        require(receipt[3] == leaf_of(msg), f"entry {seq}: the RECEIPT is for another message")
        check_msg(msg)
        peaks = fold([*blocks, (1, receipt[3])])
        blocks = cover(0, seq, peaks[::-1])
        require(root_of(peaks) == receipt[4], f"entry {seq} does not lead to the root of its RECEIPT")
        require(is_signed_then(receipt, keys, receipt[5], receipt[5] + 1), f"RECEIPT {seq} is not signed by the hub")
        number, ack, earlier = authors.get(msg[3], (0, 0, 0))  # entries left out since then may be the author's
        follows = number < msg[4] <= number + 1 + unseen - earlier
        require(follows and ack <= msg[5] < seq, f"entry {seq}: the author's numbers do not follow each other")
        authors[msg[3]] = (msg[4], msg[5], unseen)
        result.append((msg, content))
    require(root_of(fold(blocks + cover(last, size, after))) == root, "a range does not lead to the checkpoint")
    return result

def check_content(msg: list[Any], content: list[Any]) -> None:
    """Check that an opening opens header and body; plaintext proves nothing, but its header has a form."""
    if content and type(content[0]) is list:
        from_cbor("payload_hdr", content[0][0])
    elif content:
        _, profile_id, label, client_id, client_seq, prev_ack, auth_ref, _, ciphertext, _ = msg
        hdr_size, body_size = (int.from_bytes(ciphertext[at : at + 4], "big") for at in (32, 36))
        key, hdr_nonce, export = context_of(content[0])
        seq, ack = u64(client_seq), u64(prev_ack)
        aad = ht("veen/aad", profile_id, label, client_id, seq, ack, auth_ref or bytes(32))
        nonce, end = ht("veen/nonce", label, ack, client_id, seq)[:24], 40 + hdr_size
        try:
            hdr = sodium.crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext[40:end], aad, hdr_nonce, key)
            xdecrypt(ciphertext[end : end + body_size], aad, nonce, export(b"veen/body-k"))
        except CryptoError as exc:
            raise Failed("an opening does not open its message", "-", {}) from exc
        from_cbor("payload_hdr", hdr)

# --- The command line. ---
KINDS = {"receipt": "RECEIPT", "proof": "mmr_proof", "checkpoint": "CHECKPOINT", "msg": "MSG"}

def load(kind: str, path: str) -> Any:
    data = Path(path).read_bytes()
    if data.lstrip()[:1] in (b"{", b"["):  # no wire object begins with these bytes
        return from_json(kind, json.loads(data))
    return from_cbor(kind, x(data.decode()) if re.fullmatch(rb"[0-9a-fA-F\s]+", data) else data)

def run(args: Any) -> str:
    if args.command == "evidence":
        with Path(args.file).open("rb") as file:
            return check_evidence(file.read(MAX_FILE + 1), args.hub_pk, args.hub_id)
    tree = load(KINDS.get(args.command, args.command), args.file)
    if args.command == "msg":
        check_msg(tree)
        return f"MSG {tree[4]} of client {tree[3].hex()}, leaf_hash {leaf_of(tree).hex()}"
    if args.command == "equivocation":
        check_equivocation(tree)
        return f"equivocation by the holder of {' and '.join(map(bytes.hex, tree[2]))}"
    if args.command == "proof":
        size, leaf, root = load("RECEIPT", args.receipt)[2:5] if args.receipt else (args.size, None, args.root)
        if args.checkpoint:
            size, root = load("CHECKPOINT", args.checkpoint)[3:5]
        seq = size if args.seq is None else args.seq
        check_inclusion(tree, args.leaf or (seq == size and leaf) or tree[2], seq, size, root)
        return f"leaf {tree[2].hex()} is entry {seq} of {size} under root {root.hex()}"
    check_signed(tree, args.hub_pk)
    if args.command == "checkpoint":
        for key in args.witness:
            good = any(is_signed_by(key, digest_of(tree), sig) for sigs in tree[7:] for sig in sigs)
            require(good, f"{key.hex()} is no witness of this CHECKPOINT")
        return f"CHECKPOINT of label {tree[2].hex()} up to {tree[3]}, root {tree[4].hex()}"
    if args.msg:
        msg = load("MSG", args.msg)
        check_msg(msg)
        require([msg[2], leaf_of(msg)] == [tree[1], tree[3]], "the RECEIPT is for another MSG")
    return f"RECEIPT {tree[2]} of label {tree[1].hex()}, leaf_hash {tree[3].hex()}, at {tree[5]}"

def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verify VEEN objects and evidence files.")
    parser.add_argument("command", choices=["evidence", *KINDS, "equivocation"])
    parser.add_argument("file")
    parser.add_argument("--witness", type=x, nargs="+", default=[], metavar="HEX")
    hexes, paths, numbers = "--hub-pk --hub-id --root --leaf", "--msg --receipt --checkpoint", "--size --seq"
    for options, kind in ((hexes, x), (paths, str), (numbers, int)):
        for option in options.split():
            parser.add_argument(option, type=kind, metavar={x: "HEX", str: "FILE", int: "N"}[kind])
    args = parser.parse_args(argv)
    base = args.receipt or args.checkpoint or (args.root and args.size)
    if not {"receipt": args.hub_pk, "checkpoint": args.hub_pk, "proof": base}.get(args.command, True):
        parser.error("a receipt or checkpoint needs --hub-pk; a proof --receipt, --checkpoint or --root and --size")
    try:
        print(f"OK: {run(args)}")
    except OSError as exc:
        print(f"cannot read: {exc}", file=sys.stderr)
        return 2
    except (Failed, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:  # wrong content
        print(f"FAILED: {exc.args[0] if isinstance(exc, Failed) else f'not what it should be: {exc!r}'}")
        return 1
    return 0

if __name__ == "__main__":
    sys.exit(main())
