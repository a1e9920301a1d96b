"""Checks tests/vectors/histories/*.json with none of VEEN's own code (docs/vectors.md): what needs no fold.

    python tools/veen_verify_histories.py tests/vectors/histories/*.json

Written from the specification, beside tools/veen_verify.py, whose hashes, trees and signatures it uses. It reads each
log as a reader must, opens every message up to the first fault of the wire, and checks labels, states and places of
faults. The verdict is one line for each file, OK or FAILED with the reason; the exit status is 0 if all is verified,
1 if not, 2 for a file that cannot be read.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for a Python that is started with -I

import cbor2
from nacl import bindings as sodium
from nacl.signing import SigningKey

import veen_verify as base
from veen_verify import Failed, from_cbor, h, ht, is_signed_by, require, u64, x
from veen_verify_vectors import agree_secret, check_files, derive_secret, same

RULES = ("FORMAT", "SEQ", "LABEL", "CT_HASH", "LEAF", "ACK_AHEAD", "CLIENT_SEQ", "ACK_BACK", "ROOT", "AUTHOR_SIG",
         "HUB_SIG")  # fmt: skip


class Label:
    """A label as far as it was read: leaves, and the last numbers of each author."""

    def __init__(self) -> None:
        self.leaves: list[bytes] = []
        self.authors: dict[bytes, tuple[int, int]] = {}

    def find_broken_rules(self, msg: list[Any], receipt: list[Any], hub_pk: bytes) -> set[str]:
        """Take the next entry; return the names of the rules that it breaks."""
        _, _, label, client_id, client_seq, prev_ack, _, ct_hash, ciphertext, sig = msg
        seq = len(self.leaves) + 1
        self.leaves.append(receipt[3])
        last_seq, last_ack = self.authors.get(client_id, (0, 0))
        self.authors[client_id] = client_seq, prev_ack
        holds = {
            "SEQ": receipt[2] == seq,
            "LABEL": label == receipt[1],
            "CT_HASH": h(ciphertext) == ct_hash,
            "LEAF": receipt[3] == base.leaf_of(msg),
            "ACK_AHEAD": prev_ack < seq,
            "CLIENT_SEQ": client_seq == last_seq + 1,
            "ACK_BACK": prev_ack >= last_ack,
            "ROOT": base.root_of(base.fold(base.ones(self.leaves))) == receipt[4],
            "AUTHOR_SIG": is_signed_by(client_id, base.digest_of(msg), sig),
            "HUB_SIG": is_signed_by(hub_pk, base.digest_of(receipt), receipt[6]),
        }
        return {rule for rule, good in holds.items() if not good}


def read_entry(pair: list[str]) -> tuple[list[Any], list[Any]] | None:
    """MSG and RECEIPT of an entry; None if one of them is none."""
    try:
        return from_cbor("MSG", x(pair[0])), from_cbor("RECEIPT", x(pair[1]))
    except Failed:
        return None


def open_msg(msg: list[Any], reader_sk: bytes) -> None:
    """Header and body must open, and the header must have its form (spec §4.2, §4.5)."""
    enc, pk_r = msg[8][:32], sodium.crypto_scalarmult_base(reader_sk)
    base.check_content(msg, [agree_secret(sodium.crypto_scalarmult(reader_sk, enc), enc, pk_r)])


def check_history(row: Any, hub_pk: bytes, salt: bytes, reader_sk: bytes, clients: set[bytes]) -> None:
    profile = from_cbor("profile", x(row["profile"]))
    labels: dict[bytes, Label] = {}
    for label, stream_id, epoch in row["labels"]:
        require(x(label) == ht("veen/label", salt, x(stream_id), u64(epoch)), "a label is not that of its stream")
        labels[x(label)] = Label()
    places = {x(label): (x(stream_id), epoch) for label, stream_id, epoch in row["labels"]}
    require(len(labels) == len(row["labels"]), "a label is listed twice")
    fault = row.get("wire_fault")
    for number, pair in enumerate(row["log"], start=1):
        msg, receipt = read_entry(pair) or ([], [])
        require(not receipt or receipt[1] in labels, f"entry {number} is of a label that is not listed")
        rules = labels[receipt[1]].find_broken_rules(msg, receipt, hub_pk) if receipt else {"FORMAT"}
        if rules:
            listed = fault and (fault["entry"], fault["rules"])
            require((number, [r for r in RULES if r in rules]) == listed, f"entry {number} breaks {sorted(rules)}")
            break
        require(msg[1] == ht("veen/profile", x(row["profile"])), f"entry {number} is of another profile")
        require(msg[3] in clients, f"entry {number} is by a key that is not listed")
        epoch = places[receipt[1]][1]
        require(epoch == (receipt[5] // profile[6] if profile[6] else 0), f"entry {number} lies in another epoch")
        open_msg(msg, reader_sk)
    else:
        require(fault is None, "a fault of the wire is listed, and no rule is broken")
    sizes = [len(labels[x(label)].leaves) for label, _, _ in row["labels"]]
    for policy, expected in row["expect"].items():
        state = x(expected["state"])
        require(policy in ("default", "letter"), f"unknown policy {policy}")
        require(cbor2.dumps(cbor2.loads(state)) == state, "a state is not deterministic CBOR")
        require(ht(expected["state_tag"], state).hex() == expected["state_hash"], f"state_hash of {policy}")
        for label, seq, code in expected["faults"]:
            require(1 <= seq <= sizes[label], f"{code} is listed at an entry that was not read")
        order = [(row["labels"][label][0], seq) for label, seq, _ in expected["faults"]]
        require(order == sorted(set(order)), "faults are not sorted by label and position")


def check_file(v: Any) -> str:
    same(v, format="veen-histories", format_version=1, spec="v0.0.1")
    for key in v["keys"].values():
        same(key, public=SigningKey(x(key["seed"])).verify_key.encode())
    reader = v["reader"]
    same(reader, secret=derive_secret(x(reader["ikm"])))
    same(reader, public=sodium.crypto_scalarmult_base(x(reader["secret"])))
    hub_pk = x(v["hub_pk"])
    salt = ht("veen/routing_key", ht("veen/hub-id", hub_pk))
    clients = {x(key["public"]) for key in v["keys"].values()}
    for row in v["histories"]:
        try:
            check_history(row, hub_pk, salt, x(reader["secret"]), clients)
        except Failed as exc:
            raise Failed(f"{row['name']}: {exc.args[0]}", "-", {}) from exc
    faulty = sum("wire_fault" in row or bool(row["expect"]["default"]["faults"]) for row in v["histories"])
    return f"{len(v['histories'])} histories of {v['subject']}, {faulty} with faults"


def main(argv: Sequence[str] | None = None) -> int:
    return check_files(check_file, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
