"""Checks tests/vectors/veen-beyond-v0.0.1.json with none of VEEN's own code (docs/spec/README.md).

    python tools/veen_verify_beyond.py tests/vectors/veen-beyond-v0.0.1.json

Written from the specification, beside tools/veen_verify.py, whose hashes, trees and signatures it uses. The verdict is
one line, OK or FAILED with the reason; the exit status is 0 if all is verified, 1 if not, 2 for a file that cannot be
read.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from hmac import digest as mac
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for a Python that is started with -I

import cbor2
from nacl import bindings as sodium
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as xdecrypt
from nacl.bindings import crypto_pwhash_alg, crypto_pwhash_ALG_ARGON2ID13
from nacl.signing import SigningKey

import veen_verify as base
from veen_verify import Failed, h, ht, is_signed_by, require, root_of, u64, x
from veen_verify_vectors import check_files, outcome, same

LETTERS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
COID = h(b"the ciphertext of an attachment")


def refuse(condition: object, why: str) -> None:
    """Raise the first reason that applies: it is the verdict."""
    require(condition, why, why)


def decode_item(data: bytes) -> Any:
    """One item of deterministic CBOR."""
    try:
        tree = cbor2.loads(data)
        require(cbor2.dumps(tree) == data, "not the one encoding", "object")
    except (cbor2.CBORError, ValueError, TypeError) as exc:
        raise Failed("not CBOR", "object", {}) from exc
    return tree


def sequence(data: bytes) -> Iterator[Any]:
    """Return the items of a CBOR sequence, each in its one encoding: encoded again they are the file."""
    while data:
        item = cbor2.loads(data)
        size = len(cbor2.dumps(item))
        require(cbor2.dumps(item) == data[:size], "an item is not in its one encoding")
        yield item
        data = data[size:]


# --- words ----------------------------------------------------------------------------------------------------


def polymod(values: Sequence[int]) -> int:
    check = 1
    for value in values:
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ value
        for bit, term in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= term if top >> bit & 1 else 0
    return check


def from_word(prefix: str, word: str) -> bytes:
    word = word.strip()
    refuse(word in (word.lower(), word.upper()) and len(word) <= 1023, "case")
    word = word.lower()
    refuse(word.startswith(prefix + "1"), "prefix")
    letters = word[len(prefix) + 1 :]
    refuse(set(letters) <= set(LETTERS), "alphabet")
    values = [LETTERS.index(letter) for letter in letters]
    expanded = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    refuse(len(values) >= 6 and polymod(expanded + values) == 0x2BC830A3, "checksum")
    bits = "".join(f"{value:05b}" for value in values[:-6])
    whole, rest = bits[: len(bits) // 8 * 8], bits[len(bits) // 8 * 8 :]
    refuse(len(rest) < 5 and "1" not in rest, "bits")
    return bytes(int(whole[at : at + 8], 2) for at in range(0, len(whole), 8))


def check_word(prefix: str, word: str) -> bytes:
    data = from_word(prefix, word)
    tree = decode_item(data)
    if prefix == "veen-stream":
        numbers = list(tree) if type(tree) is dict else []
        refuse(
            numbers[:3] == [1, 2, 3] and numbers == sorted(set(numbers)) and set(numbers) <= {1, 2, 3, 4, 5}, "object"
        )
        refuse(tree[1] == 1 and len(tree[2]) == len(tree[3]) == 32, "object")
        refuse(4 not in tree or sodium.crypto_scalarmult_base(tree[4]) == tree[3], "object")
        refuse(5 not in tree or base.stream_id_of(tree[5]) == tree[2], "object")
    else:
        refuse(list(tree) == [1, 2, 3, 4, 5, 6] and tree[1] == 1 and len(data) <= 512, "object")
        refuse(
            is_signed_by(tree[2], ht("veen/card", cbor2.dumps({n: tree[n] for n in range(1, 6)})), tree[6]), "signature"
        )
    return data


# --- objects --------------------------------------------------------------------------------------------------


def leaves(tree: Any) -> list[Any]:
    """Yield the values of a tree in order, byte strings in hex: the same for CBOR and JSON, whatever the keys."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree.hex() if isinstance(tree, bytes) else tree]


def check_keys(tree: Any, shown: Any, fields: Any) -> None:
    """Check that the keys of every map match its names in the fields of some kind; text keys are the names."""
    if isinstance(tree, list):
        for item, other in zip(tree, shown, strict=True):
            check_keys(item, other, fields)
    elif isinstance(tree, dict):
        names = list(shown)
        places = [
            [columns.index(name) + 1 for name in names] for columns in fields.values() if set(names) <= set(columns)
        ]
        require(list(tree) in [names, *places], f"the keys {list(tree)} are not those of {names}")
        for item, other in zip(tree.values(), shown.values(), strict=True):
            check_keys(item, other, fields)


def check_object(row: Any, fields: Any) -> None:
    tree = decode_item(x(row["cbor"]))
    require(isinstance(tree, list) == (row["form"] == "array"), f"{row['name']}: form")
    require(row["form"] != "map" or list(tree) == sorted(tree), f"{row['name']}: keys")
    require(leaves(tree) == leaves(row["json"]), f"{row['name']}: the JSON form says something else")
    check_keys(tree, row["json"], fields)
    for signed in (row[name] for name in ("signed", "countersigned") if name in row):
        sig, data = x(signed["sig"]), x(signed["data"])
        if row["kind"] == "attachment grant":
            covered = tree[2] + COID
        elif row["form"] == "body":  # a list of all fields but the signatures; null for those that are absent
            covered = cbor2.dumps([tree.get(name) for name in fields[row["kind"]] if not name.startswith("sig_")])
        elif isinstance(tree, list):
            covered = cbor2.dumps(tree[:-1])
        else:
            covered = cbor2.dumps({key: value for key, value in tree.items() if value != sig})
        require(covered == data and sig in (tree if isinstance(tree, list) else tree.values()), f"{row['name']}: data")
        same(signed, digest=ht(signed["tag"], data))
        require(is_signed_by(x(signed["public"]), x(signed["digest"]), sig), f"{row['name']}: signature")


# --- proofs ---------------------------------------------------------------------------------------------------


def check_proofs(proofs: Any) -> None:
    log = base.ones(x(leaf) for leaf in proofs["leaves"])
    roots = [x(root) for root in proofs["roots"]]
    for size, root in enumerate(roots, start=1):
        require(root_of(base.fold(log[:size])) == root, f"root of {size}")
    for row in proofs["consistency"]:
        consistency(decode_item(x(row["cbor"])), row["from_size"], row["to_size"], roots)
    for row in proofs["range"]:
        run(decode_item(x(row["cbor"])), row["first_seq"], row["last_seq"], row["tree_size"], log, roots)
    for row in proofs["refused"]:
        tree = decode_item(x(row["cbor"]))
        if row["kind"] == "consistency_proof":
            verdict = outcome(consistency, tree, row["from_size"], row["to_size"], roots)
        else:
            verdict = outcome(run, tree, row["first_seq"], row["last_seq"], row["tree_size"], log, roots)
        require(verdict != "accepted", f"{row['kind']} {row['name']} is accepted")


def consistency(tree: Any, old: int, new: int, roots: list[bytes]) -> None:
    require([tree[1], tree[2], tree[3]] == [1, old, new], "the proof is for other sizes")
    require(len(set(tree[4])) == len(tree[4]) == old.bit_count(), "the peaks do not fit the size")
    require(root_of(tree[4]) == roots[old - 1], "not the old root")
    whole = base.cover(0, old, tree[4][::-1]) + base.cover(old, new, tree[5])
    require(root_of(base.fold(whole)) == roots[new - 1], "not the new root")


def run(tree: Any, first: int, last: int, size: int, log: Any, roots: list[bytes]) -> None:
    require([tree[n] for n in range(1, 5)] == [1, first, last, size], "the proof is for another range")
    whole = base.cover(0, first - 1, tree[5][::-1]) + log[first - 1 : last] + base.cover(last, size, tree[6])
    require(root_of(base.fold(whole)) == roots[size - 1], "not the root")


# --- control journal, proof of work ---------------------------------------------------------------------------


def check_control(control: Any, hub_pk: bytes) -> None:
    before: bytes | None = None
    for row in control["chain"]:
        check_record(x(row["cbor"]), before, hub_pk)
        same(row, record_hash=h(x(row["cbor"])), signing_digest=base.digest_of(decode_item(x(row["cbor"]))))
        before = x(row["cbor"])
    first = x(control["chain"][0]["cbor"])
    for row in control["refused_after_the_first"]:
        verdict = outcome(check_record, x(row["cbor"]), first, hub_pk)
        require(verdict == f"refused: {row['error']}", f"{row['name']}: {verdict}")


def check_record(data: bytes, before: bytes | None, hub_pk: bytes) -> None:
    tree = decode_item(data)
    last: list[Any] = decode_item(before) if before else [1, 0, "", 0]
    refuse(tree[1] == last[1] + 1, "seq")
    refuse(tree[4] == (h(before) if before else bytes(32)), "prev_hash")
    refuse(tree[3] >= last[3], "hub_ts")
    refuse(is_signed_by(hub_pk, ht("veen/control", cbor2.dumps(tree[:6])), tree[6]), "hub_sig")


def check_pow(row: Any) -> None:
    cookie = decode_item(x(row["cbor"]))
    require(
        list(cookie) == ["challenge", "nonce", "difficulty"] and row["header"] == row["cbor"], f"{row['name']}: shape"
    )
    value = ht("veen/pow", cookie["challenge"], u64(cookie["nonce"]))
    same(row, value=value)

    def paid() -> None:
        refuse(cookie["challenge"] == h(x(row["request"])), "challenge")
        refuse(cookie["difficulty"] >= row["difficulty"], "difficulty")
        refuse(int.from_bytes(value, "big") >> (256 - cookie["difficulty"]) == 0, "nonce")

    same(row, verdict=outcome(paid).replace("accepted", "good"))


# --- keystore, portable set, files of a hub --------------------------------------------------------------------


def derive(root: bytes, info: bytes, size: int) -> bytes:
    """HKDF-SHA256 with an empty salt, up to 32 bytes."""
    return mac(mac(bytes(32), root, "sha256"), info + b"\x01", "sha256")[:size]


def check_keystore(row: Any) -> None:
    tree = decode_item(x(row["cbor"]))
    kdf, memory, passes, salt = (tree[n] for n in (2, 3, 4, 5))
    if kdf == "none":
        root = ht("veen/keystore-plain", salt)
    else:
        secret = row["passphrase"].encode()
        root = crypto_pwhash_alg(32, secret, salt, passes, memory * 1024, crypto_pwhash_ALG_ARGON2ID13)
    header = cbor2.dumps({n: tree[n] for n in range(1, 8)})
    seal_key = derive(root, b"veen/keystore-key", 32)
    require(derive(root, b"veen/keystore-check", 16) == tree[6], "key_check")
    require(ht("veen/keystore-sum", header, tree[8]) == tree[9], "checksum of a keystore")
    same(row, root=root, seal_key=seal_key, header=header, secrets=xdecrypt(tree[8], header, tree[7], seal_key))


def check_set(files: dict[str, bytes]) -> None:
    """Reason of a refusal: the file with the fault."""
    card = decode_item(check_word("veen", files["identity_card"].decode()))
    refuse("manifest.cbor" in files, "manifest.cbor")
    manifest = decode_item(files["manifest.cbor"])
    digest = ht("veen/portable-set", cbor2.dumps({n: manifest[n] for n in range(1, 5)}))
    refuse(manifest[2] == card[2] and is_signed_by(manifest[2], digest, manifest[5]), "manifest.cbor")
    listed = {row[1]: row for row in manifest[4]}
    refuse(list(listed) == sorted(listed) and len(listed) == len(manifest[4]), "manifest.cbor")
    for path in sorted(set(files) - set(listed) - {"manifest.cbor"}):
        refuse(False, path)
    for path, row in listed.items():
        refuse(path in files and len(files[path]) == row[2] and h(files[path]) == row[3], path)
        if path.startswith("attachments/"):
            refuse(path == f"attachments/{row[3].hex()}", path)


def check_inside(files: dict[str, bytes]) -> int:
    """Receipts, messages and checkpoints of a good set, under the keys of its hubs."""
    hubs = [json.loads(record[2]) for record in sequence(files["hubs"])]
    keys = [x(key["hub_pk"]) for hub in hubs for key in hub["hub_keys"]]
    receipts, messages = list(sequence(files["receipts.cborseq"])), list(sequence(files["payloads.cborseq"]))
    log: list[tuple[int, bytes]] = []
    for receipt, msg in zip(receipts, messages, strict=True):
        base.check_signed(base.check("RECEIPT", receipt), *keys)
        base.check_msg(base.check("MSG", msg))
        require(base.leaf_of(msg) == receipt[3], "a message is not that of its receipt")
        log.append((1, receipt[3]))
        require(receipt[2] == len(log) and root_of(base.fold(log)) == receipt[4], "a root does not follow")
    for point in sequence(files["checkpoints.cborseq"]):
        base.check_signed(base.check("CHECKPOINT", point), *keys)
    for held_token in sequence(files["cap_tokens"]):
        links = zip(base.link_digests(held_token[2]), held_token[2][5], strict=True)
        require(all(is_signed_by(held_token[2][2], digest, sig) for digest, sig in links), "a token of the set")
    for state in sequence(files["sync_state"]):
        require(root_of(state[11]) == state[10] and state[12] == bytes(32), "a label state")
    for msg in sequence(files["pending.cborseq"]):
        base.check_msg(base.check("MSG", msg))
    return len(receipts)


def canonical(data: bytes) -> Any:
    value = json.loads(data)
    again = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    require(again == data, "a JSON file is not in its one form")
    return value


def check_fork(row: Any, keys: Any) -> None:
    data = x(row["fork-origin.json"])
    value = canonical(data)
    require(sorted(value) == ["forked_at", "labels", "origin_hub_id", "same_identity", "ver"], "fork-origin.json")
    digest = ht("veen/fork-origin", data)
    require(is_signed_by(x(keys[row["signer"]]["public"]), digest, x(row["fork-origin.sig"])), "fork-origin.sig")
    heads = [{name: head[name] for name in ("label", "upto_seq", "mmr_root")} for head in value["labels"]]
    same(row, digest=digest, origin_hub_id=value["origin_hub_id"], labels=heads)


def check_identity(row: Any, keys: Any) -> None:
    data = x(row["hub-identity.json"])
    value = canonical(data)
    first = min(value["hub_keys"], key=lambda key: (key["valid_from"], key["hub_pk"]))
    require(ht("veen/hub-id", x(first["hub_pk"])).hex() == value["hub_id"], "hub_id")
    require(all(h(x(key["hub_pk"])).hex()[:16] == key["key_id"] for key in value["hub_keys"]), "key_id")
    same(row, digest=ht("veen/hub-identity", data))
    require(
        is_signed_by(x(keys[row["signer"]]["public"]), x(row["digest"]), x(row["hub-identity.sig"])), "hub-identity.sig"
    )
    root_pk = keys[row["ephemeral"]["root"]]["public"]
    signed = is_signed_by(x(root_pk), x(row["digest"]), x(row["ephemeral"]["hub-identity.sig"]))
    require(signed, "hub-identity.sig by a root")
    same(row["ephemeral"], **{"hub-root.pk": f"{root_pk}\n".encode(), "pin": f"root:ed25519:{root_pk}"})


def check_birth(data: bytes, hub_pk: bytes, now: int) -> None:
    """Check that a blank directory may begin with a key at this second; the first reason against it is the verdict."""
    data = data.removesuffix(b"\n")
    try:
        require(len(data) <= 1024, "too long")
        value = canonical(data)
        require(type(value) is dict and sorted(value) == ["hub_pk", "not_after", "sig", "ver"], "members")
        named, sig, end = x(value["hub_pk"]), x(value["sig"]), value["not_after"]
        require(value["ver"] == 1 and type(end) is int and 0 <= end < 2**63, "ver or not_after")
        require((named.hex(), sig.hex()) == (value["hub_pk"], value["sig"]), "hex in small letters")
        require((len(named), len(sig)) == (32, 64), "sizes")
    except (Failed, ValueError, TypeError) as exc:
        raise Failed("not a birth certificate", "format", {}) from exc
    refuse(is_signed_by(named, ht("veen/birth", named + u64(end)), sig), "signature")
    refuse(named == hub_pk, "key")
    refuse(now <= end, "time")


def check_births(v: Any, hub_pk: bytes) -> None:
    digest = ht("veen/birth", hub_pk + u64(v["not_after"]))
    same(v, hub_pk=hub_pk, digest=digest)
    require(is_signed_by(hub_pk, digest, x(v["sig"])), "birth: sig")
    for row in v["good"]:
        check_birth(x(row["birth.json"]), hub_pk, row["now"])
    for row in v["refused"]:
        verdict = outcome(check_birth, x(row["birth.json"]), hub_pk, row["now"])
        require(verdict == f"refused: {row['error']}", f"birth {row['name']}: {verdict}")


# --- the whole file -------------------------------------------------------------------------------------------


def check_vectors(v: Any) -> str:
    same(v, format="veen-beyond-vectors", format_version=1, spec="v0.0.1")
    for key in v["keys"].values():
        same(key, public=SigningKey(x(key["seed"])).verify_key.encode())
    for row in v["words"]["good"]:
        for word in (row["word"], row["capitals"], f" {row['word']}\n"):
            require(check_word(row["prefix"], word).hex() == row["cbor"], f"word {row['name']}")
    for row in v["words"]["refused"]:
        verdict = outcome(check_word, row["prefix"], row["word"])
        require(verdict == f"refused: {row['error']}", f"word {row['name']}: {verdict}")
    for row in v["objects"]:
        check_object(row, v["fields"])
    check_proofs(v["proofs"])
    check_control(v["control"], x(v["keys"]["hub"]["public"]))
    for row in v["evidence"]:
        statements = sorted(x(statement) for statement in row["statements"])
        packed = {
            1: 1,
            2: [x(key) for key in row["hub_pks"]],
            3: decode_item(statements[0]),
            4: decode_item(statements[1]),
        }
        same(row, cbor=cbor2.dumps(packed))
        base.check_equivocation(base.from_cbor("equivocation", x(row["cbor"])))
    for row in v["evidence_files"]["good"]:
        verdict = base.check_evidence(x(row["file"]), x(v["evidence_files"]["hub_pk"]), None)
        require(f"of {row['entries']} entries" in verdict, f"evidence file {row['name']}: {verdict}")
    for row in v["evidence_files"]["refused"]:
        verdict = outcome(base.check_evidence, x(row["file"]), x(v["evidence_files"]["hub_pk"]), None)
        require(verdict.startswith("refused"), f"evidence file {row['name']}: {verdict}")
    for row in v["pow"]:
        check_pow(row)
    for row in v["keystore"]:
        check_keystore(row)
    files = {path: x(data) for path, data in v["portable_set"]["files"].items()}
    check_set(files)
    same(v["portable_set"], entries=check_inside(files))
    for row in v["portable_set"]["refused"]:
        changed = {path: None if data is None else x(data) for path, data in row["change"].items()}
        broken = {path: data for path, data in {**files, **changed}.items() if data is not None}
        verdict = outcome(check_set, broken)
        require(verdict == f"refused: {row['path']}", f"set {row['name']}: {verdict}")
    for row in v["fork_origin"]:
        check_fork(row, v["keys"])
    check_identity(v["hub_identity"], v["keys"])
    check_births(v["birth"], x(v["keys"][v["birth"]["signer"]]["public"]))
    return f"{len(v['objects'])} objects, {len(v['words']['good'])} words, {len(v['methods'])} methods"


def main(argv: Sequence[str] | None = None) -> int:
    return check_files(check_vectors, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
