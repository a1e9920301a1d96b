"""What the codes of overlays mean: why a message counts for nothing, and why a call, a login or a payment fails."""

from typing import Final

from veen.cli.explaining import Explanation

__all__ = ["EXPLANATIONS"]


def _code(code: str, means: str, because: str, spec: str, *fixes: str) -> Explanation:
    return Explanation(code=code, means=means, because=because, spec=spec, fixes=fixes)


_LOOK: Final = "See the message and who sent it: `veen stream STREAM --from SEQ --to SEQ`."
_PRODUCER: Final = "Whoever sent it has to send another one; the log itself is whole."
_FOLDING: Final = "docs/overlays.md, Bodies"
_WALLETS: Final = "WAL v0.0.1, docs/overlays-wallet.md"
_IDS: Final = "ID v0.0.1, docs/overlays-id.md"
_TOKENS: Final = "ID §10.2, docs/overlays-id.md, External logins"
_AUTH: Final = "ID §9.2, docs/overlays-id.md"
_BALANCE: Final = "See what the wallet holds and whether it is open: `veen wallet balance WALLET`."
_HISTORY: Final = "See what happened to it: `veen wallet history WALLET --refused`."
_DEVICES: Final = "See the devices and their status: `veen id device list`."
_PROVIDER: Final = "Compare the configuration of the gateway with what the provider publishes."
_AGAIN: Final = "Let the user log in again; a token is for one login and a short time."


def _body(code: str, means: str, because: str) -> Explanation:
    return _code(code, means, f"{because} It counts for nothing and folding goes on.", _FOLDING, _PRODUCER, _LOOK)


def _wal(code: str, means: str, because: str, *fixes: str) -> Explanation:
    return _code(f"WAL.{code}", means, because, _WALLETS, *fixes)


def _id(code: str, means: str, because: str, *fixes: str) -> Explanation:
    return _code(f"ID.{code}", means, because, _IDS, *fixes)


def _jwt(code: str, means: str, because: str, *fixes: str) -> Explanation:
    return _code(f"ID.JWT_{code}", means, because, _TOKENS, *(fixes or (_PROVIDER, _AGAIN)))


def _auth(code: str, means: str, because: str, *fixes: str) -> Explanation:
    return _code(f"ID.AUTH_{code}", means, because, _AUTH, *fixes)


EXPLANATIONS: Final = (
    # --- any overlay ------------------------------------------------------------------------------------------
    _code(
        "E.ABSENT",
        "the state holds nothing of this name",
        "The log was read and folded, and what was asked for is not in the result, or not any more.",
        "docs/overlays.md",
        "See the whole state: `veen fold show STREAM --overlay NAME`.",
        "It may have been there before: add --as-of with a position or a time.",
    ),
    _code(
        "E.SNAPSHOT",
        "a kept state does not belong to this log, or is damaged",
        "A snapshot is bound to the position and the root of the log that it was made from. This log has another root.",
        "spec §11.3, D-82",
        "Fold from the log alone: `veen fold show STREAM --overlay NAME --no-cache`.",
        "If the log is the one it was made from, compare with another reader: the hub may tell two stories.",
    ),
    _code(
        "E.SELFTEST",
        "a self-test failed",
        "Something that hub and client promise did not hold; the table of checks says what.",
        "001 spec-4 §8",
        "Run it against hubs of its own, to tell the installation from the hub: `veen selftest overlays`.",
        "A hub that asks for capabilities refuses the clients of the test: `veen hub status --hub URL`.",
    ),
    _body("OVL.CBOR", "the body is not one deterministic CBOR item", "Every body has exactly one encoding (D-02)."),
    _body("OVL.BODY", "the body is not of its schema", "A key is missing, unknown, repeated, misplaced or mistyped."),
    _body("OVL.SIZE", "a part of the body has a size that the schema does not allow", "Ids and hashes have 32 bytes."),
    _body("OVL.VERSION", "the body speaks an unknown version", "A newer producer may have written it."),
    _body("OVL.PARENT", "the schema needs a parent_id and the header has none", "A reply must name what it answers."),
    _body(
        "STATE.CLASS", "the checkpoint does not say which fold its state is of", "state_class is the name of a fold."
    ),
    _body(
        "STATE.CUTS",
        "the cuts of a checkpoint say nothing",
        "They are [label, upto_seq, mmr_root], sorted by label, one of them at upto_stream_seq with mmr_root.",
    ),
    _code(
        "KV.VALUE",
        "a put needs a value, and a del has none",
        "null is no value: a key that shall be empty is deleted.",
        "docs/overlays.md, D-84",
        "Delete the key instead: `veen kv del STREAM KEY`.",
    ),
    _code(
        "CRUD.FIELDS",
        "create and update need fields, delete has none",
        "The message says nothing that can be done.",
        "docs/overlays.md, D-84",
        "Give the fields as a JSON object: `veen crud update STREAM ENTITY ID '{}'`.",
    ),
    _code(
        "CRUD.EXISTS",
        "the record exists already",
        "A create is for a record that is not there; somebody was faster.",
        "docs/overlays.md, D-84",
        "Look at it: `veen crud get STREAM ENTITY ID`; then change it: `veen crud update STREAM ENTITY ID FIELDS`.",
    ),
    _code(
        "CRUD.MISSING",
        "there is no such record",
        "It was never created, or has been deleted.",
        "docs/overlays.md, D-84",
        "See which there are: `veen crud list STREAM`.",
    ),
    _code(
        "CRUD.REV",
        "the record is not at the revision that the writer saw",
        "Somebody changed it in between; the change that came second does not undo the first.",
        "docs/overlays.md, D-84",
        "Read it again and decide anew: `veen crud get STREAM ENTITY ID`.",
    ),
    _code(
        "QUEUE.SHAPE",
        "the message is neither an enqueue nor an ack or nack",
        "An enqueue has an item; ack and nack have the msg_id of one.",
        "docs/overlays.md, D-84",
        _PRODUCER,
    ),
    _code(
        "QUEUE.UNKNOWN",
        "there is no such item in the queue",
        "An ack or nack names the msg_id of an enqueue that stands before it in the log.",
        "docs/overlays.md, D-84",
        "See what is there: `veen queue show STREAM`.",
    ),
    _code(
        "QUEUE.DONE",
        "the group has acknowledged this item",
        "What is done cannot be given back.",
        "docs/overlays.md, D-84",
        "Put it into the queue again: `veen queue push STREAM ITEM`.",
    ),
    _code(
        "QUEUE.GROUP",
        "the queue has no such group",
        "The reader has configured which groups there are.",
        "docs/overlays.md, D-84",
        "Check the name of the group: `veen queue show STREAM`.",
    ),
    _code(
        "CRDT.ORSET",
        "the message is neither an add nor a remove",
        "An add has id and elem, a remove has tomb.",
        "001 spec-1 CRDT0.2, D-88",
        _PRODUCER,
    ),
    # --- calls --------------------------------------------------------------------------------------------------
    _code(
        "RPC.NO_ANSWER",
        "nobody answered the call in time",
        "The call is in the log and may still be carried out; with the same --idem it is one call, however often sent.",
        "001 spec-1 RPC0.4, D-86",
        "See whether it was answered since: `veen rpc trace STREAM`.",
        "Call again with the same number: `veen rpc call STREAM METHOD ARGS --idem N --retry`.",
    ),
    _code(
        "RPC.BODY",
        "the server cannot read the request",
        "Its body is not of the schema rpc.v1.",
        "001 spec-1 RPC0.1",
        "Call by a client that knows the schema: `veen rpc call STREAM METHOD ARGS`.",
    ),
    _code(
        "RPC.METHOD",
        "the server has no such method",
        "Methods are named by whoever serves the stream.",
        "001 spec-1 RPC0.1",
        "Check the name, or ask who serves the stream.",
    ),
    _code(
        "RPC.EXPIRED",
        "the server did not begin: the caller had stopped waiting",
        "A call carries how long its answer is of use.",
        "D-86",
        "Call again, with more time: `veen rpc call STREAM METHOD --timeout 60s`.",
    ),
    _code(
        "RPC.TIMEOUT",
        "the server began and was not done in time",
        "It took longer than the caller said it would wait.",
        "D-86",
        "Allow more time: `veen rpc call STREAM METHOD --timeout 5m`.",
    ),
    _code(
        "RPC.RESULT",
        "the server has a result that cannot be sent",
        "Bodies hold integers, text, bytes, lists and maps, and are bounded in size.",
        "001 spec-1 RPC0.2",
        "The server must return something else.",
    ),
    _code(
        "RPC.INTERNAL",
        "the server failed",
        "It does not tell strangers why; its own log does.",
        "001 spec-1 RPC0.2",
        "Ask whoever runs the server.",
    ),
    _code(
        "RPC.PROGRAM",
        "the program that carries out this method failed",
        "It could not be started, ended with an error, printed no JSON, or printed too much.",
        "docs/cli.md",
        "Try it where it is served: it gets the arguments as JSON on standard input; see `veen rpc serve`.",
    ),
    _code(
        "RPC.REPLY",
        "a reply is neither a result nor an error",
        "One that is ok has a result and no error, any other an error and no result.",
        "001 spec-1 RPC0.2",
        _PRODUCER,
    ),
    # --- identities ---------------------------------------------------------------------------------------------
    _id(
        "STREAM",
        "the message stands in the stream of another identity",
        "Streams carry authority: whoever may write to one speaks for the identity that it belongs to, and no other.",
        "Send it again by `veen id`, which knows the stream; or name the one stream for all with --stream.",
    ),
    _id(
        "ORG_SCOPE",
        "a binding goes by the bare org_id where the realm-scoped one is used",
        "Once an organization has bindings of its own in a realm, those decide there (ID §3.5).",
        "Send the group or role again with the scoped org_id: `veen id role add ROLE --org ORG_ID`.",
    ),
    _id(
        "CTX_OWNER",
        "a principal revokes an account that is not its own",
        "An account belongs to the principal whose key leads to it.",
        "Let its own principal do it: `veen id context revoke`.",
    ),
    _id(
        "AUTHOR",
        "the sender is none of the writers of this stream",
        "The reader has named who may write there, beyond what the hub admits.",
        "Let one of the writers send it, or change the configuration of the reader.",
    ),
    _id("DEVICE_ID", "device_id does not belong to device_pk", "It is a hash of the key.", _PRODUCER),
    _id(
        "HANDLE",
        "this cannot be a handle",
        "A handle has 1 to 255 bytes, no space and no control characters; case matters (D-95).",
        "Choose another: `veen id handle add HANDLE`.",
    ),
    _id("LINK_TARGET", "a link leads to nobody", "It needs a ctx_id or an org_id.", _PRODUCER),
    _id(
        "LINK_CONFLICT",
        "an external account is linked to several identities",
        "Each writer's last word is kept, and they differ; readers believe the writers they trust.",
        "See who wrote what: `veen id external list`, and name whom you believe: `veen id resolve NAME --writer HEX`.",
    ),
    _id(
        "REVOKE_TARGET",
        "a revocation of nothing",
        "It needs a device, a token, an account or an organization.",
        "Say what: `veen id device revoke DEVICE_ID`.",
    ),
    _id(
        "DELEGATION",
        "no token can be given to this key",
        "A principal's token is for an ACTIVE device of that principal; this key is none.",
        "Record the device first: `veen id device add --card CARD`.",
        _DEVICES,
    ),
    _id(
        "LOGIN_UNKNOWN",
        "no account is linked to this external account",
        "Without a principal none can be made.",
        _AGAIN,
    ),
    _id(
        "LOGIN_TARGET",
        "the external account stands for an organization",
        "Organizations do not log in.",
        "See the link: `veen id external list`.",
    ),
    _id(
        "LOGIN_REVOKED",
        "the account is disabled in this realm",
        "A new one would undo the revocation.",
        "See who revoked it: `veen id context list`.",
    ),
    _jwt("FORMAT", "the token is no compact JWS with a JSON object in it", "It was cut off or is something else."),
    _jwt("HEADER", "the token asks for something that is not understood", "Its type or an extension is unknown."),
    _jwt("KEY", "the token is signed by a key that is not in the key set", "The provider may have rotated its keys."),
    _jwt("ALG", "the token names another algorithm than that of its key", "Accepting it would let forgers choose."),
    _jwt("SIGNATURE", "the signature of the token does not verify", "It was changed or forged."),
    _jwt("ISSUER", "the token is from another issuer", "Issuers are compared exactly."),
    _jwt("AUDIENCE", "the token is meant for another audience", "A token for one service must not open another."),
    _jwt("EXPIRED", "the token is over, or does not say when it ends", "Tokens live for a short time.", _AGAIN),
    _jwt("EARLY", "the token is not valid yet", "Its nbf or iat lies ahead: one of the clocks is wrong.", _AGAIN),
    _jwt("SUBJECT", "the token names no subject", "sub has 1 to 255 ASCII characters."),
    _jwt("NONCE", "the token is not the answer to this login", "It may have been used before.", _AGAIN),
    _auth("SIGNATURE", "the sender did not sign the message", "MSG.sig must verify under client_id.", _LOOK),
    _auth(
        "TOKEN",
        "the message names no token that is known here",
        "auth_ref names the cap_token by which a device acts for its principal.",
        "Let the principal give one: `veen id delegate CARD --out FILE`.",
    ),
    _auth("CHAIN", "the token is not signed by its issuer", "A link of its sig_chain does not verify.", _PRODUCER),
    _auth("SUBJECT", "the token is for another key", "Its subject is not the key that signed the message.", _DEVICES),
    _auth(
        "STREAMS",
        "the token does not allow this stream",
        "It lists the streams that its holder may write to.",
        "Ask for one that does: `veen id delegate CARD --for-stream STREAM --out FILE`.",
    ),
    _auth(
        "TTL",
        "the token is over",
        "Its time counts from when the hub has seen it.",
        "Renew it: `veen cap renew TOKEN`.",
    ),
    _auth("RATE", "the token was used more often than it allows", "It has a bucket of messages.", "Send more slowly."),
    _auth("REVOKED", "the issuer has taken the token back", "Revocations are for good.", "Ask the issuer for another."),
    _auth(
        "ISSUER",
        "the issuer of the token is not known here, or is revoked",
        "The log holds no record of this principal or organization.",
        "See who is known: `veen id principal list`, `veen id org list`.",
    ),
    _auth(
        "DEVICE",
        "the key is no ACTIVE device of the principal",
        "It is unknown, disabled, expired or revoked.",
        _DEVICES,
    ),
    _auth(
        "CTX",
        "the account is not the principal's, or is disabled",
        "An account follows from the principal's key and the realm.",
        "See the account: `veen id context list`.",
    ),
    _auth(
        "ROLE",
        "the account does not have the role",
        "Neither directly nor through a group of the organization.",
        "See who has it: `veen id role show ROLE`.",
    ),
    # --- wallets ------------------------------------------------------------------------------------------------
    _wal("INSUFFICIENT_FUNDS", "the balance would have gone below zero", "No wallet is ever overdrawn.", _BALANCE),
    _wal(
        "FROZEN",
        "the wallet is frozen",
        "It receives, but nothing leaves it.",
        _HISTORY,
        "`veen wallet unfreeze WALLET`.",
    ),
    _wal("CLOSED", "the wallet is closed", "Nothing enters or leaves it, and it cannot be opened again.", _HISTORY),
    _wal(
        "DAILY_LIMIT_EXCEEDED",
        "more would have left the wallet on one day than its limit allows",
        "Days are those of UTC.",
        _BALANCE,
        "Wait for the next day, or let whoever may set another limit: `veen wallet limit WALLET AMOUNT`.",
    ),
    _wal(
        "INVALID_CURRENCY",
        "the currency is not allowed here, or the two wallets hold different ones",
        "A wallet holds one currency, a printable ASCII text.",
        _BALANCE,
    ),
    _wal(
        "UNAUTHORIZED_OPERATION",
        "the sender may not do this under the policy of the reader",
        "Deposits, corrections, limits and freezes count only from the keys of the institution (WAL §8).",
        "Let a key of the institution send it; readers name those by --service.",
    ),
    _wal(
        "UNKNOWN_WALLET",
        "the wallet has not been opened",
        "Or its stream is not among those that were read.",
        "Open it: `veen wallet open CURRENCY`.",
        "See whose streams you can read: `veen id keyring list`.",
    ),
    _wal("WALLET_ID", "the wallet_id is not that of its owner and currency", "It is a hash of both.", _PRODUCER),
    _wal(
        "WRONG_STREAM",
        "the event does not stand on the stream of its wallet",
        "A right on one stream must not be a right on all wallets.",
        "Where one stream serves all wallets, say so to every command: --stream STREAM.",
    ),
    _wal(
        "TRANSFER_ID_REUSED",
        "the transfer_id already belongs to another transfer",
        "The same id means the same transfer, which counts once.",
        "Send it with a new id: `veen wallet transfer WALLET TO_WALLET AMOUNT`.",
    ),
    _wal(
        "REF_REUSED",
        "the ref already belongs to another amount",
        "The same ref on the same wallet means the same payment, which counts once.",
        _HISTORY,
    ),
    _wal(
        "TIME_SKEW",
        "the time in the event is too far from that of the hub",
        "The day of a limit goes by the sender's time, so the reader bounds how far it may be off.",
        "Set the clock of the sender, and send it again.",
    ),
    _wal(
        "BALANCE_LEFT",
        "the wallet still holds money",
        "What is in a closed wallet could never leave it.",
        "Empty it first: `veen wallet withdraw WALLET AMOUNT`.",
    ),
)
