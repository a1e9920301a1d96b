"""Checks tests/vectors/veen-v0.0.1.json with none of VEEN's own code (docs/vectors.md).

    python tools/veen_verify_vectors.py tests/vectors/veen-v0.0.1.json

Written from the specification, beside tools/veen_verify.py, whose objects, hashes, trees and signatures it uses. Here
is what only vectors need: a hub that admits messages, and sealing. The verdict is one line, OK or FAILED with the
reason; the exit status is 0 if all is verified, 1 if not, 2 for wrong usage or a file that cannot be read.
"""

import json
import sys
from collections.abc import Callable, Sequence
from hmac import digest as mac
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for a Python that is started with -I

import cbor2
from nacl import bindings as sodium
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as xencrypt
from nacl.signing import SigningKey

from veen_verify import (
    Failed,
    att_root_of,
    check_equivocation,
    check_inclusion,
    check_msg,
    check_signed,
    context_of,
    cover,
    digest_of,
    expand,
    fold,
    from_cbor,
    from_json,
    h,
    ht,
    is_signed_by,
    leaf_of,
    link_digests,
    ones,
    require,
    root_of,
    stream_id_of,
    to_json,
    u64,
    x,
)

# fmt: off

# --- HPKE (RFC 9180): a sender, and keys from input keying material. ---
KEM = b"HPKE-v1KEM\x00\x20"
def derive_secret(ikm: bytes) -> bytes: return expand(mac(b"", KEM + b"dkp_prk" + ikm, "sha256"), KEM + b"sk")

def agree_secret(dh: bytes, enc: bytes, pk_r: bytes) -> bytes:
    return expand(mac(b"", KEM + b"eae_prk" + dh, "sha256"), KEM + b"shared_secret" + enc + pk_r)

# --- A hub as the vectors describe it: admission in the order of §8.2, with all the state that it depends on. ---
class Hub:
    def __init__(self, told: Any, keys: Any) -> None:
        self.told, self.keys, self.epoch_sec = told, keys, int(told["epoch_sec"])
        hub_id = ht("veen/hub-id", self.public(told["hub_keys"][0]["key"]))
        self.salt = ht("veen/routing_key", hub_id)
        same(told, hub_id=hub_id, routing_key=self.salt)
        self.caps: dict[bytes, dict[str, Any]] = {  # token, record, issued_at, and of the bucket level and filled_at
            ht("veen/cap", x(raw)): {"token": from_cbor("cap_token", x(raw))} for raw in told["preloaded_tokens"]}
        self.logs: dict[bytes, list[tuple[bytes, int]]] = {}  # leaf and hub_ts
        self.clients: dict[tuple[bytes, bytes], tuple[int, int]] = {}  # last client_seq and prev_ack
        self.known: dict[bytes, tuple[bytes, int]] = {}  # stream and epoch of the labels that have entries
        self.journal: list[bytes] = []

    def public(self, name: str) -> bytes: return x(self.keys[name]["public"])
    def label(self, stream: bytes, epoch: int) -> bytes: return ht("veen/label", self.salt, stream, u64(epoch))
    def root(self, label: bytes, size: int) -> bytes: return root_of(fold(ones(e[0] for e in self.logs[label][:size])))

    def active(self, start: int, end: int) -> list[str]:
        """Return the keys valid at some time in start … end - 1, the newest first, which signs (D-41)."""
        keys = [k for k in self.told["hub_keys"] if k["valid_from"] < end and start < k.get("valid_until", 1 << 64)]
        return [k["key"] for k in sorted(keys, key=lambda k: -k["valid_from"])]

    def check_token(self, token: dict[int, Any]) -> None:
        links = zip(link_digests(token), token[5], strict=True)
        good = all(is_signed_by(token[2], digest, signature) for digest, signature in links)
        trusted = token[2] in map(self.public, self.told["trusted_issuers"])
        require(good and trusted, "a link or the issuer of the token is bad", "E.CAP auth CAP_INVALID")

    def authorize(self, raw: bytes, now: int) -> bytes:
        """Return the control record of a token: the first one ever, or a new link of the journal (D-46, D-47)."""
        ref, token = ht("veen/cap", raw), from_cbor("cap_token", raw)
        self.check_token(token)
        if ref not in self.caps:
            prev_hash = h(self.journal[-1]) if self.journal else bytes(32)
            items = [1, len(self.journal) + 1, "cap.authorize", now, prev_hash, {1: ref, 2: h(raw), 3: raw}]
            self.journal.append(sign_items(self.keys["hub"], items))
            self.caps[ref] = {"token": token, "record": self.journal[-1], "issued_at": now}
        return bytes(self.caps[ref]["record"])

    def submit(self, raw: bytes, now: int) -> bytes:
        """Return the receipt of a message, or its refusal; only acceptance changes the state."""
        msg = from_cbor("MSG", raw)
        _, profile_id, label, client_id, client_seq, prev_ack, auth_ref, *_ = msg
        require(profile_id.hex() in self.told["profile_ids"], "unknown profile", "E.FORMAT structural PROFILE")
        check_msg(msg)
        cap, level, allowed = self.caps.get(auth_ref), 0, [stream_id_of(name) for name in self.told["streams"]]
        require(cap or (auth_ref is None and not self.told["capability_gating"]), "no token", "E.CAP auth CAP_MISSING")
        if cap:
            self.check_token(cap["token"])
            require(cap["token"][3] == client_id, "the token is another client's", "E.AUTH auth AUTH_REF")
            allowed = cap["token"][4][1]
        current, window = (now // es, self.told["max_epoch_skew_sec"] // es) if (es := self.epoch_sec) else (0, 0)
        near = range(max(0, current - window - 1), current + window + 2) if es else [0]
        places = {self.label(stream, epoch): (stream, epoch) for stream in allowed for epoch in near} | self.known
        require(label in places and places[label][0] in allowed, "label out of scope", "E.CAP auth CAP_SCOPE")
        if cap:
            allow, most = cap["token"][4], (self.told["max_cap_rate_per_sec"], self.told["max_cap_rate_burst"])
            require(now <= cap.get("issued_at", now) + allow[2], "the token has expired", "E.TIME auth CAP_TTL")
            per_sec, burst = map(min, most, allow.get(3, dict(enumerate(most))).values())  # the bucket of D-50
            level = min(burst, cap.get("level", burst) + per_sec * (now - cap.get("filled_at", now)))
            if level < 1:
                raise Failed("the bucket is empty", "E.RATE auth CAP_RATE", {"retry_after": 1} if per_sec else {})
        log, (last_seq, last_ack) = self.logs.get(label, []), self.clients.get((label, client_id), (0, 0))
        require(last_ack <= prev_ack <= len(log), "prev_ack falls back or runs ahead", "E.SEQ commit PREV_ACK")
        if 1 <= client_seq <= last_seq:
            original = [number for number, (leaf, _) in enumerate(log, start=1) if leaf == leaf_of(msg)]
            raise Failed("used client_seq", "E.SEQ commit DUPLICATE", {"stream_seq": original[0]} if original else {})
        require(client_seq == last_seq + 1, "client_seq leaves a gap", "E.SEQ commit CLIENT_SEQ")
        require(abs(places[label][1] - current) <= window, "epoch out of the window", "E.TIME commit EPOCH")
        if cap:
            cap.update(issued_at=cap.get("issued_at", now), filled_at=now, level=level - 1)
        self.logs[label], self.known[label] = [*log, (leaf_of(msg), now)], places[label]
        self.clients[label, client_id] = (client_seq, prev_ack)
        items = [1, label, len(log) + 1, leaf_of(msg), self.root(label, len(log) + 1), now]
        return sign_items(self.keys[self.active(now, now + 1)[0]], items)

    def check_checkpoint(self, point: list[Any], stream_id: bytes, heads: dict[bytes, int]) -> None:
        """§4.4.1, and both keys of a rotation as witnesses (D-37)."""
        _, label_prev, label, upto_seq, mmr_root, epoch, _, *witness_sigs = point
        names = self.active(epoch * self.epoch_sec, (epoch + 1) * self.epoch_sec or 1 << 64)
        check_signed(point, *map(self.public, names))
        require(label == self.label(stream_id, epoch), "label_curr is not of this epoch", "label_curr")
        before = self.label(stream_id, epoch - 1) if epoch else label
        require(label_prev in (label, before), "label_prev is not of the epoch before", "label_prev")
        require(heads.get(label, 1) <= upto_seq <= len(self.logs[label]), "upto_seq leaves the log", "upto_seq")
        require(self.root(label, upto_seq) == mmr_root, "mmr_root is not that of the log", "mmr_root")
        at = self.logs[label][upto_seq - 1][1]
        both, sigs = self.active(at, at + 1)[::-1], witness_sigs[0] if witness_sigs else []
        good = [is_signed_by(self.public(key), digest_of(point), sig) for key, sig in zip(both, sigs, strict=False)]
        require(len(both) == 1 or good == [True, True], "a key of the rotation is missing", "witness_sigs")
        heads[label] = upto_seq

# --- The vectors: everything in the file is computed again and compared. ---
def same(row: Any, **computed: Any) -> None:
    for name, value in computed.items():
        require(to_json(value) == row[name], f"{row.get('name', '')} {name}: {row[name]} is listed")

def sign(key: Any, digest: bytes) -> bytes: return SigningKey(x(key["seed"])).sign(digest).signature
def sign_items(key: Any, items: list[Any]) -> bytes: return cbor2.dumps([*items, sign(key, digest_of(items))])

def outcome(work: Callable[..., Any], *args: Any) -> str:
    try:
        work(*args)
    except Failed as exc:
        return f"refused: {exc.args[1].split()[-1]}"
    return "accepted"

def check_vectors(v: Any) -> str:
    same(v, format="veen-vectors", format_version=1, spec="v0.0.1")
    for name, key in v["keys"].items():
        if name == "reader":
            same(key, secret=derive_secret(x(key["ikm"])), public=sodium.crypto_scalarmult_base(x(key["secret"])))
        else:
            same(key, public=SigningKey(x(key["seed"])).verify_key.encode())
    for row in v["constants"]["hashes"]:
        same(row, hash=h(*([row["tag"].encode(), b"\x00"] if row["tag"] else []), *map(x, row["parts"])))
    for size, row in enumerate(v["constants"]["mmr"], start=1):
        leaves = [bytes([n]) * 32 for n in range(1, size + 1)]
        peaks = fold(ones(leaves))
        same(row, leaf=leaves[-1], peaks=peaks, root=root_of(peaks), att_root=att_root_of(leaves))
    for row in v["objects"]:
        check_object(row, [x(key["public"]) for key in v["keys"].values()])
    for scenario in v["scenarios"].values():
        check_scenario(scenario, v["keys"])
    for row in v["equivocation"]:
        evidence = from_cbor("equivocation", x(row["cbor"]))
        verdict = outcome(check_equivocation, evidence).replace("accepted", "proven")
        same(row, json=to_json(evidence, "equivocation"), verdict=verdict)
    for row in v["malformed"]:
        read = (from_cbor, row["kind"], x(row["cbor"])) if "cbor" in row else (from_json, row["kind"], row["json"])
        require(outcome(*read) == f"refused: {row['error']}", f"{row['kind']} {row['name']} is {outcome(*read)}")
    return ", ".join(f"{len(v[name])} {name}" for name in ("objects", "scenarios", "equivocation", "malformed"))

def check_object(row: Any, publics: Sequence[bytes]) -> None:
    kind, raw, tree = row["kind"], x(row["cbor"]), from_cbor(row["kind"], x(row["cbor"]))
    same(row, json=to_json(tree, kind), cbor=cbor2.dumps(from_json(kind, row["json"])))
    derived: dict[str, Any] = {"profile_id": ht("veen/profile", raw)} if kind == "profile" else {}
    if type(tree) is list:
        derived["signing_digest"] = digest_of(tree)
        for sig in [tree[9]] if kind == "MSG" else [tree[6], *(sig for sigs in tree[7:] for sig in sigs)]:
            require(any(is_signed_by(pk, digest_of(tree), sig) for pk in publics), f"{row['name']}: signature")
    if kind == "MSG":
        derived["leaf_hash"] = leaf_of(tree)
    if kind == "cap_token":
        derived = {"auth_ref": ht("veen/cap", raw), "token_hash": h(raw), "link_digests": link_digests(tree)}
    same(row, derived=derived)

def check_scenario(scenario: Any, keys: Any) -> None:
    hub, heads = Hub(scenario["hub"], keys), dict[bytes, int]()
    for step in scenario["steps"]:
        check_step(step, hub)
    for row in scenario.get("checkpoints", []):
        point = from_cbor("CHECKPOINT", x(row["cbor"]))
        sigs = [sign(keys[name], digest_of(point)) for name in (row["signer"], *row["witnesses"])]
        require([point[6], *(point[7] if len(point) == 8 else [])] == sigs, f"{row['name']}: signatures")
        verdict = outcome(hub.check_checkpoint, point, stream_id_of(row["stream"]), heads)
        same(row, signing_digest=digest_of(point), verdict=verdict)
    for kind, rows in scenario.get("proofs", {}).items():
        for row in rows:
            check_proof(kind, row, ones(leaf for leaf, _ in next(iter(hub.logs.values()))))

def check_proof(kind: str, row: Any, log: list[tuple[int, bytes]]) -> None:
    proof = from_cbor("mmr_proof" if kind in ("inclusion", "refused") else f"{kind}_proof", x(row["cbor"]))
    if kind == "consistency":
        _, old, new, peaks, added = proof.values()
        whole = cover(0, old, peaks[::-1]) + cover(old, new, added)
        require([peaks, fold(whole)] == [fold(log[:old]), fold(log[:new])], "a consistency proof")
        same(row, from_size=old, to_size=new, from_root=root_of(peaks), to_root=root_of(fold(whole)))
    elif kind == "range":
        _, first, last, size, left, right = proof.values()
        whole = cover(0, first - 1, left[::-1]) + log[first - 1 : last] + cover(last, size, right)
        require(fold(whole) == fold(log[:size]), "a range proof")
        same(row, first_seq=first, last_seq=last, tree_size=size, root=root_of(fold(whole)))
    else:
        leaf = x(row["leaf_hash"]) if kind == "refused" else log[row["stream_seq"] - 1][1]
        verdict = outcome(check_inclusion, proof, leaf, row["stream_seq"], row["tree_size"], x(row["root"]))
        require(verdict.startswith("accepted" if kind == "inclusion" else "refused"), f"{kind}: {verdict}")

def check_step(step: Any, hub: Hub) -> None:
    submit, got = step["op"] == "submit", dict[str, Any]()
    raw = x(step["msg" if submit else "token"])
    ask = {"submit": hub.submit, "authorize": hub.authorize}[step["op"]]
    try:
        got["receipt" if submit else "record"] = ask(raw, step["hub_ts"])
    except Failed as exc:
        code, stage, detail_enum = exc.args[1].split()
        got["refused"] = {"code": code, "stage": stage, "detail_enum": detail_enum, **exc.args[2]}
    msg = cbor2.loads(raw)
    own = {"signing_digest": digest_of(msg), "leaf_hash": leaf_of(msg)} if submit else {"auth_ref": ht("veen/cap", raw)}
    same(step, expect=got, **own)
    if "seal" in step:
        require(msg[2] == hub.label(stream_id_of(step["stream"]), step["epoch"]), "label of a step")
        require(msg[9] == sign(hub.keys[step["signer"]], digest_of(msg)), "signer of a step")
        check_seal(step["seal"], msg, x(hub.keys["reader"]["secret"]))

def check_seal(seal: Any, msg: list[Any], sk_r: bytes) -> None:
    """§4.2 and §4.6, from the ephemeral secret to the padded ciphertext."""
    dh, public_of = sodium.crypto_scalarmult, sodium.crypto_scalarmult_base
    _, profile_id, label, client_id, client_seq, prev_ack, auth_ref, _, ciphertext, _ = msg
    sk_e, seq, ack = derive_secret(x(seal["ikm_e"])), u64(client_seq), u64(prev_ack)
    enc = public_of(sk_e)
    key, hdr_nonce, export = context_of(agree_secret(dh(sk_r, enc), enc, public_of(sk_r)))
    aad = ht("veen/aad", profile_id, label, client_id, seq, ack, auth_ref or bytes(32))
    nonce, k_body = ht("veen/nonce", label, ack, client_id, seq)[:24], export(b"veen/body-k")
    hdr = sodium.crypto_aead_chacha20poly1305_ietf_encrypt(x(seal["payload_hdr"]), aad, hdr_nonce, key)
    body = xencrypt(x(seal["body"]), aad, nonce, k_body)
    whole = enc + len(hdr).to_bytes(4, "big") + len(body).to_bytes(4, "big") + hdr + body
    padding = bytes(-len(whole) % (from_cbor("profile", x(seal["profile"]))[7] or 1))
    require([ht("veen/profile", x(seal["profile"])), whole + padding] == [profile_id, ciphertext], "a ciphertext")
    same(seal, sk_e=sk_e, enc=enc, dh=dh(sk_e, public_of(sk_r)), aad=aad, nonce=nonce, k_body=k_body)
    same(seal, hpke_ct_hdr=hdr, aead_ct_body=body, padding_bytes=len(padding))
    sealed, header = list[bytes](), from_cbor("payload_hdr", x(seal["payload_hdr"]))
    for index, row in enumerate(seal["attachments"]):
        k_att, n_att = export(b"veen/att-k" + u64(index)), ht("veen/att-nonce", aad, u64(index))[:24]
        sealed.append(xencrypt(x(row["plaintext"]), b"", n_att, k_att))
        same(row, k_att=k_att, n_att=n_att, ciphertext=sealed[-1], coid=h(sealed[-1]))
    require(header.get(3) == (att_root_of(map(h, sealed)) if sealed else None), "att_root of a message (I5)")
    listed = from_cbor("veen.attached.v1", x(seal["body"]))["attachments"] if sealed else []
    require([(h(c), len(c) - 16) for c in sealed] == [(a["coid"], a["size"]) for a in listed], "declared attachments")
    require(header.get(4, auth_ref) == auth_ref, "cap_ref of a message")

# --- The command line. ---
def main(argv: Sequence[str] | None = None) -> int:
    return check_files(check_vectors, sys.argv[1:] if argv is None else argv)

def check_files(work: Callable[[Any], str], paths: Sequence[str]) -> int:
    """Check files one after another; the highest status of all."""
    if not paths:
        print("usage: give one or more files of vectors", file=sys.stderr)
        return 2
    status = 0
    for path in paths:
        try:
            print(f"OK: {work(json.loads(Path(path).read_bytes()))}")
        except OSError as exc:
            print(f"cannot read: {exc}", file=sys.stderr)
            status = 2
        except (Failed, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:  # wrong content
            what = exc.args[0] if isinstance(exc, Failed) else f"not what it should be: {exc!r}"
            print(f"FAILED: {path}: {what}")
            status = max(status, 1)
    return status

if __name__ == "__main__":
    sys.exit(main())
