"""Writes docs/spec/objects.md and docs/spec/methods.md: objects and tooling methods beyond the seeds, field by field;
and the tables of docs/wire-format.md.

    python tools/make_spec.py           write the files
    python tools/make_spec.py --check   exit 1 if a file on disk is not what this program writes

The fields come from the declarations of the objects; what an object means is written here. An object without a meaning,
or without a vector, cannot be added: tests/test_beyond.py compares with all the code knows.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from beyond_vectors import COMMON, METHODS
from veen.core.objects.control import BODIES
from veen.core.wire import Wire, WireField

ROOT: Final = Path(__file__).resolve().parent.parent
OBJECTS: Final = ROOT / "docs" / "spec" / "objects.md"
METHOD_PAGE: Final = ROOT / "docs" / "spec" / "methods.md"
WIRE_FORMAT: Final = ROOT / "docs" / "wire-format.md"
LAYERS: Final = ("core", "client", "storage", "hub")  # overlays have pages of their own

# What no seed document defines, in the order of the page. Everything else that is a wire object is in wire-format.md.
MEANINGS: Final = {
    "stream keys": (
        "The keys of a stream as they are shared; the word `veen-stream1…` is this object (README, "
        "Words). `name`, if present, hashes to `stream_id`; `reader_pk` is the X25519 public key of "
        "`reader_sk`."
    ),
    "identity_card": (
        "The public side of an identity; the word `veen1…` is this object. At most 512 bytes. `sig` is "
        'by `id_sign_pk` over Ht("veen/card", CBOR of the map without `sig`).'
    ),
    "prekey": (
        "An X25519 key for messages to an identity, usable up to and including `expires_at`. `sig` is by "
        '`id_sign_pk` over Ht("veen/prekey", CBOR of the map without `sig`).'
    ),
    "consistency_proof": "The tree of `from_size` leaves is a prefix of that of `to_size` (README, Proofs).",
    "range_proof": "The leaves `first_seq` … `last_seq` stand at these places of the tree (README, Proofs).",
    "equivocation": "Two statements of one hub that cannot both be true (README, Evidence).",
    "control record": "One link of the control journal (README, Control journal). `kind` names the body.",
    "cap.authorize": (
        "`token` was accepted; `auth_ref` and `token_hash` = H(token) follow from it. The hub_ts of the "
        "first such record is issued_at (D-47)."
    ),
    "cap.derive": (
        "`token` was accepted because its issuer is the subject of the token `parent_ref`, which a record authorises,"
        " and its streams are among those of that token. It counts while both are live and not revoked, and the "
        "rate of the parent is charged for it; its own as well, if it sets one (D-179)."
    ),
    "stream.register": "The hub resolves the labels of this stream although no token names it.",
    "label.open": "The first entry of a label follows. `stream_id` is absent where the hub does not know it.",
    "limits.set": "The limit registry from here on: a map with text keys, sorted by their encoding.",
    "key.rotate": (
        "`hub_pk` signs from `valid_from` on; `retired_pk` until before `retired_until`. The record is "
        "signed by the key of its hub_ts."
    ),
    "retention.drop": (
        "The payloads of the sealed chunk were erased; a second record for the same chunk: its receipts "
        "too. `entry_hashes_root` is the MMR root over its entry hashes."
    ),
    "anchor.publish": "The root was made known through `backend`, which calls it `anchor_ref`.",
    "request.done": "Record `record` is the outcome of the administrative request `request_id`; both are of one group.",
    "outer.key": "The key of the hub's outer log (docs/witnesses.md): `vkey` is its C2SP verifier key, named `origin`.",
    "hub.fence": (
        "The hub admits nothing after this record. `upto` is the number of entries of all labels, `root` = "
        'Ht("veen/heads", label ‖ number of entries, 8 bytes ‖ mmr_root, for all labels by label).'
    ),
    "hub.promote": (
        "A replica goes on as the primary. `source` is the address that it followed, `upto` and `root` as in "
        "hub.fence; `complete` if the record before is a hub.fence that says the same."
    ),
    "policy.revocation": "1 to 256 revocations, in force from the second after the record on.",
    "policy.authority": "1 to 256 authorities, in force from the second after the record on.",
    "policy.bounds": (
        "1 to 256 bounds, in force from the second after the record on until a later record names the same target. A "
        "larger MSG is refused as FIELD_SIZE with the field msg, after CAP_SCOPE."
    ),
    "size bound": (
        "`kind` is label or stream; the MSG as a whole may have at most `max_msg_bytes`, and 0 lifts the bound. Of the "
        "bounds of a label and its stream the smaller one counts."
    ),
    "revocation": (
        "`kind` is client-id, auth-ref or cap-token; `target` is the key, the auth_ref, or H of the "
        "token. Without `ttl` it never ends."
    ),
    "authority": "Which hub is the primary of a stream; `policy` is single-primary or multi-primary.",
    "veen.pow.cookie.v1": (
        "The price of one request (README, Proof of work). A map with text keys in this order, at most 128 bytes."
    ),
    "attachment grant": (
        "In the header VEEN-Cap as hex: the subject of the capability vouches for one attachment. `sig` "
        'is over Ht("veen/attachment-grant", auth_ref ‖ coid).'
    ),
    "client_cursor request": (
        'A client asks for its own cursor. `sig` is by `client_id` over Ht("veen/cursor", CBOR of the '
        "map without `sig`); `ts` lies within max_epoch_skew_sec of the hub's time."
    ),
    "client_cursor response": (
        "The last accepted client_seq and prev_ack, 0 and 0 if there is none; `stream_seq` and `leaf` of "
        "the entry asked for, both absent if the client has no such entry. Only what is durable."
    ),
    "attached entry": "An entry that an attachment belongs to, by the names that its writer knows beforehand.",
    "attachments request": (
        "Which attachments came or changed behind the change `after` of `instance`, both of an answer before? "
        "0 and no instance ask for all of them."
    ),
    "attachments response": (
        "The first of them in the order of their changes; none if nothing is left up to the change `last`. Another "
        "`instance` than the one asked for counts its changes anew, and the answer begins with the first."
    ),
    "stored attachment": (
        "What a hub notes of an attachment: its bytes are at /tooling/attachment/<coid>. `owner` is whose quota it "
        "counts for, empty for nobody's; retention erases it with the last of `entries`, never if it is `pinned`."
    ),
    "feed request": (
        "What changed? `control_bytes` is the length of the caller's control journal; `instance` and `after` "
        "are those of an answer before. The answer waits up to `wait_sec` if nothing did."
    ),
    "feed response": (
        "How far the hub is, as of one moment. `labels` got entries after `after`, all of them if `complete`; "
        "`control` is a part of the control journal from `control_bytes` of the request on."
    ),
    "grant": "A hub has authorised a token at this time. Part of a held token.",
    "held token": "A token as a client keeps it: one item of `cap_tokens` in a portable set.",
    "label state": (
        "What a client knows of a label: one item of `sync_state`. `mode` is full or light; `peaks` are "
        "those of `last_stream_seq` in full mode and none in light mode; `last_mmr_root` is absent while "
        "`last_stream_seq` is 0; `rk` is zeros in a portable set."
    ),
    "hub record": (
        "A hub as the client last accepted it: one item of `hubs`. `record` is the bytes of hub-identity.json."
    ),
    "listed file": "One file of a portable set: its path, size, and SHA-256.",
    "manifest": (
        "All files of a portable set but itself, by path. `sig` is by `id_sign_pk` over "
        'Ht("veen/portable-set", CBOR of the map without `sig`).'
    ),
    "keystore": "keystore.enc, at most 4 MiB (README, Keystore).",
    "secrets": (
        "What a keystore seals: seeds of Ed25519 keys, X25519 secrets, and the keyring, newest key of a stream first."
    ),
    "recovery slot": (
        "A further way to open a keystore: `box` is its root key, sealed by HPKE to `pk`; the salt of the keystore is"
        " associated data. Part of keystore.enc."
    ),
    "former keys": "Long-term keys of an identity that were replaced, and the last generation of its client keys then.",
    "client key": "A client key of the identity, in use or retired. Part of secrets.",
    "prekey secret": "A prekey with its secret half. Part of secrets.",
    "request": "A request that says nothing but the version.",
    "label request": "A request about one label.",
    "ok response": "The hub has done it.",
    "authorize response": (
        "`record` is the signed entry that fixes issued_at; expires_at = its hub_ts + ttl."
        " A derived token may end earlier."
    ),
    "derive request": "Shows a token that the subject of the token `parent_ref` issued for a client key (D-179).",
    "cap_status request": "Asks for what the hub holds about a token.",
    "cap_status response": "`token` is the exact bytes: H and chain are for the reader to check.",
    "streams request": "Registers a stream.",
    "streams response": "The registered and configured streams, in the order of their ids.",
    "record response": "The signed record that an operation led to, now or before.",
    "rotate_key request": "Gives the hub its next key; the present one stays valid `overlap_sec` seconds after that.",
    "policy request": "At most 256 of each. What is known already is not recorded again.",
    "policy response": "The records that were appended: none, one or two.",
    "policy records response": "What is enforced, and the policy records behind `after`; `more`: the list goes on.",
    "anchor request": (
        "Anchors a checkpoint, of the whole label without `upto_seq`. With `backend` and `anchor_ref` somebody did."
    ),
    "anchor response": "The checkpoint and the record of its anchor.",
    "anchored checkpoint": "An anchor beside its checkpoint, which is absent once the key of its time was taken away.",
    "anchors response": "By upto_seq, at most 100; `more`: the list goes on.",
    "proof_at request": "Asks for the inclusion proof of an entry under the root of a later size.",
    "consistency request": "Asks for a consistency proof between two sizes.",
    "consistency response": "The proof, for the reader to verify against two roots.",
    "checkpoint_range request": "Per label its latest checkpoint, by (epoch, label), behind (`epoch_min`, `after`).",
    "inspect request": "One label, or all of them by (epoch, label) behind `after_epoch` and `after`.",
    "label info": "What the hub knows of a label. Unsigned.",
    "inspect response": "`label_count` is of the whole hub; `more`: the list goes on.",
    "tail request": "As a stream request; an empty page waits up to `wait_sec` ≤ 60 seconds.",
    "legacy stream item": "One element of GET stream.",
    "status response": "What a client needs to build messages this hub accepts. Unsigned.",
    "hub key": (
        "A key of the hub, valid for valid_from ≤ hub_ts < valid_until; key_id = first 16 hex digits of H(hub_pk)."
    ),
    "identity response": (
        "hub-identity.json and its signature, by the newest key or an offline root (D-42). A pin gives trust."
    ),
    "health response": "The process is alive; the rest is about the label that was committed to last.",
    "readiness response": "Whether messages are admitted now, and why not. 503 if not.",
    "version response": "Versions of the program and of the API.",
    "evidence body": (
        "The body of an evidence file ([evidence.md](../evidence.md)), entries with all that an outsider needs to "
        "check them. The bytes in it are those of the objects that the names say."
    ),
    "evidence log": "One label of the stream. `consistency` has one proof fewer than there are `checkpoints`.",
    "evidence run": "Entries without a gap, and their range_proof under the first checkpoint of the log.",
    "evidence entry": "MSG and RECEIPT, and perhaps the opening of the message or its plaintext; trimmed, never null.",
    "evidence plaintext": "What the exporter says that the entry holds. Nothing proves it.",
    "wrapped key": "A secret key of 32 bytes, sealed by HPKE (RFC 9180, base mode).",
    "key wrap": (
        "A secret key of a generation for the holder of the card `card_id`: info `veen/keys-wrap`, associated data "
        "stream_id ‖ u64be(gen) ‖ pk ‖ card_id, sealed to the dh_pk of the card."
    ),
    "key generation": (
        "Body of veen.keys.generation.v1 (D-171): writers seal to `pk` from here on. `history` is false if later "
        "invitations hand over no generation before this one. `number` counts the records of the owner in the stream "
        "from 1: a record whose number is not greater than all before it changes nothing; one without a number counts "
        "once. `back`, in records of earlier releases only (D-182), is the secret key of gen - 1 sealed to `pk` with "
        "info `veen/keys-back`. `sig` is by `owner_pk` over "
        'Ht("veen/keys-generation", CBOR of the map without `sig`).'
    ),
    "key hand-over": (
        "Body of veen.keys.wrap.v1: the owner gave a generation to cards, or to whoever has the secret half of "
        "`invite_pk`. It counts for the present generation only, and `number` as in a key generation. `earlier` are "
        "the generations before that are given as well, and no others (D-182). `sig` is by `owner_pk` over "
        'Ht("veen/keys-wrap", CBOR of the map without `sig`).'
    ),
    "earlier generation": "A generation before the present one, wrapped for the cards of a hand-over.",
    "key enrolment": (
        "Body of veen.keys.join.v1: an invitation was used by the holder of `card`. `sig` is by `invite_pk` over "
        'Ht("veen/keys-join", CBOR of the map without `sig`).'
    ),
    "key shredding": (
        "Body of veen.keys.shred.v1: all readers forget the secret key of a generation. `sig` is by `owner_pk` over "
        'Ht("veen/keys-shred", CBOR of the map without `sig`).'
    ),
    "key owner": (
        "Body of veen.keys.owner.v1: records of the owner count from here on if `new_owner_pk` signed them, and those "
        "of `owner_pk` no more. `number` as in a key generation; the control key stays that of the first owner. `sig` "
        'is by `owner_pk` and `sig_new` by `new_owner_pk`, both over Ht("veen/keys-owner", CBOR of the map without '
        "the two)."
    ),
    "veen.mirror.copy.v1": (
        "Body of a copy that a bridge made of an event of another hub (D-187, D-193). `parent_id` of the message is "
        "the msg_id of the original, `schema` and `body` are its own, `origin_hub_id` and `origin_hub_ts` are the hub "
        "that ordered it and the time there, `via` are further hubs that it passed. `origin_ts` is the greatest hub_ts "
        "of its label there, where that is greater. Readers get the event of the original; folds believe the times "
        "of a registered bridge."
    ),
    "author card": "Body of veen.card.v1: the author of the message is the identity on the card.",
    "veen.speaks.v1": (
        "Body of a message (D-179): `client_id` speaks for the principal in the stream `stream_id`, where ts* lies "
        "from `not_before` up to and including `not_after`, which differ by 1 to 87000 seconds. Both signatures are "
        'over Ht("veen/speaks", CBOR of [principal_pk, client_id, stream_id, not_before, not_after]). Rules: '
        "[overlays-operations.md](../overlays-operations.md#who-speaks-for-whom)."
    ),
    "veen.speaks.end.v1": (
        "Body of a message: the principal ends its binding of `client_id`; without one, all its bindings that stand "
        "before, and then the statement counts once: `ended_at` tells two of them apart. `reason` has at most 400 "
        'bytes. `sig_principal` is over Ht("veen/speaks-end", CBOR of [principal_pk, client_id, stream_id, reason, '
        "ended_at], null for what is absent)."
    ),
    "veen.principal.next.v1": (
        "Body of a message: the key `new` takes the place of the principal `old` in the stream. Both signatures are "
        'over Ht("veen/principal-next", CBOR of [old, new, stream_id]).'
    ),
    "announced generation": "A generation and where it was announced. Part of a key state.",
    "open invitation": "An invitation by code that was not used yet. Part of a key state.",
    "author key": "A client key and the identity that proved to have it, until when. Part of a key state.",
    "end of an author key": "The place of the statement that ended an author key. Part of a key state.",
    "replaced principal": "A principal and the one that took its place. Part of a key state.",
    "label cursor": "How far a label was read for messages about keys. Part of a key state.",
    "shredded generation": "A generation whose secret key is to be forgotten. Part of a key state.",
    "key state": "What a client keeps of the messages about keys of a stream; the log gives it again.",
    "contact": "One person whom the user knows: her newest card, all her client keys, her prekey, tokens for her.",
    "contact book": "All contacts of a user, by name.",
    "invitation": (
        "What is sealed in an invitation. Its keys are used at this hub, or at hubs of the pinned root, and at no "
        "other (D-183). `sig` is by the inviter over "
        'Ht("veen/invite", CBOR of the map without `sig`).'
    ),
    "sealed invitation": (
        "An invitation for a card (HPKE, info `veen/invite`) or for a code (argon2id and XChaCha20-Poly1305). All "
        "fields before `sealed` are its associated data."
    ),
    "outside proof": "A proof by somebody else than the hub about the checkpoint whose bytes have this SHA-256.",
}


def kinds() -> dict[str, type[Wire]]:
    """Every wire object of the layers below the overlays, by its kind."""
    for layer in LAYERS:
        package = importlib.import_module(f"veen.{layer}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return {cls.KIND: cls for cls in _subclasses(Wire) if hasattr(cls, "KIND")}


def _subclasses(cls: type[Any]) -> Iterator[type[Wire]]:
    for sub in cls.__subclasses__():
        if sub.__module__.startswith(tuple(f"veen.{layer}." for layer in LAYERS)):
            yield sub
            yield from _subclasses(sub)


def fields_of(cls: type[Wire]) -> dict[str, str]:
    """Return the description of each field by its name on the wire."""
    return {field.name: field.type.words + "; optional" * field.optional for field in cls.wire_fields()}


def objects_page() -> str:
    classes = kinds()
    lines = [
        "# Objects beyond the seed documents",
        "",
        "Made by `tools/make_spec.py` from the code that reads them. Encoding: [wire-format.md](../wire-format.md). A",
        "map has the integer keys below in CBOR and the names in JSON; a body has the names in both; an array has its",
        "items in this order. Optional fields are omitted. `uint` is an unsigned integer below 2^64. Unknown keys are",
        "refused. One or more of each are in `tests/vectors/veen-beyond-v0.0.1.json`, under `objects`.",
    ]
    for kind, meaning in MEANINGS.items():
        cls = classes[kind]
        lines += ["", f"## {kind}", "", f"{meaning} Form: {cls.FORM}.", "", "| key | field | value |", "|---|---|---|"]
        for number, (name, value) in enumerate(fields_of(cls).items(), start=1):
            lines.append(f"| {name if cls.FORM == 'body' else number} | {name} | {value} |")
    return "\n".join(lines) + "\n"


# The rows of the two tables in wire-format.md; * marks what no seed document defines.
WIRE_OBJECTS: Final = (
    "profile", "MSG", "RECEIPT", "CHECKPOINT", "payload_hdr", "mmr_proof", "path step", "cap_token", "allow", "rate",
    "control record", "error", "equivocation *", "consistency_proof *", "range_proof *",
)  # fmt: skip
CONTROL_BODIES: Final = (*BODIES, "revocation", "authority", "size bound")


def wire_format_page(text: str) -> str:
    """`text` with its two tables as the declarations have them."""
    objects = [("object", "form"), *((name, _form(name)) for name in WIRE_OBJECTS)]
    bodies = [("kind", None), *((name, None) for name in CONTROL_BODIES)]
    return _with_table(_with_table(text, "objects", objects), "control bodies", bodies)


def _with_table(text: str, mark: str, rows: Sequence[tuple[str, str | None]]) -> str:
    before, rest = text.split(f"<!-- {mark}: made by tools/make_spec.py -->\n", 1)
    _, after = rest.split(f"<!-- end of {mark} -->\n", 1)
    (head, *cells), classes = rows, kinds()
    lines = [" | ".join(("|", *filter(None, head), "fields |")), "|---" * (1 + len([*filter(None, head)])) + "|"]
    for name, form in cells:
        fields = "; ".join(_field_words(field) for field in classes[name.removesuffix(" *")].wire_fields())
        lines.append(" | ".join(("|", *filter(None, (name, form)), fields + " |")))
    table = "\n".join(line.replace("| | ", "| ") for line in lines)
    return f"{before}<!-- {mark}: made by tools/make_spec.py -->\n{table}\n<!-- end of {mark} -->\n{after}"


def _form(name: str) -> str:
    cls = kinds()[name.removesuffix(" *")]
    if cls.FORM != "array":
        return cls.FORM
    fields = cls.wire_fields()
    return f"array of {len(fields) - 1} or {len(fields)}" if fields[-1].optional else f"array of {len(fields)}"


def _field_words(field: WireField) -> str:
    return f"`{field.name}`{'?' if field.optional else ''} {field.type.words}"


def methods_page() -> str:
    lines = [
        "# Tooling methods and their statuses",
        "",
        "Made by `tools/make_spec.py`. Requests and responses are objects of [objects.md](objects.md) or",
        "[wire-format.md](../wire-format.md), in CBOR or JSON; `seq:` is a CBOR sequence, an array in JSON. Who may",
        "call is in [api.md](../api.md). A status has its `code`, or, where it comes from the admission table or a",
        "quota, its `detail_enum`.",
        "The methods at `/tooling/healthz`, `readyz`, `version` and `metrics` are at the root as well.",
        "",
        "## Every method",
        "",
        "| who | status | code | when |",
        "|---|---|---|---|",
        *(f"| {who} | {status} | {code} | {when} |" for who, status, code, when in COMMON),
    ]
    for method in METHODS:
        lines += [
            "",
            f"## {method.http} {method.path}",
            "",
            f"Caller: {method.who}. Request: {method.request}. Response: {method.response}.",
            "",
            "| status | code | when |",
            "|---|---|---|",
            *(f"| {status} | {code} | {when} |" for status, code, when in method.statuses),
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the specification.")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    args = parser.parse_args(argv)
    faults = 0
    wire_format = wire_format_page(WIRE_FORMAT.read_text("utf-8"))
    for path, text in ((OBJECTS, objects_page()), (METHOD_PAGE, methods_page()), (WIRE_FORMAT, wire_format)):
        if not args.check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.stderr.write(f"{path.name} is not what tools/make_spec.py writes\n")
            faults = 1
    return faults


if __name__ == "__main__":
    sys.exit(main())
