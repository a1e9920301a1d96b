"""Every way a client says no, in four families that decide the exit code of the command line (UX: exit codes).

    LocalError      5   keys, configuration or state on this machine
    NetworkError    3   the hub was not reached, or what answered does not speak the protocol
    HubRefused      4   the hub answered, and said no
    Divergence      1   the hub, or someone in its place, was caught: evidence, never papered over

As in the core, errors carry data and survive pickling, the words are derived, and nothing here holds a secret.
`code` is stable and names the error in JSON output and for `veen explain`.
"""

from collections.abc import Mapping
from typing import Any, Self

from veen.core.envelopes import ErrorEnvelope
from veen.core.errors import RETIRED_CODES, VeenError, VerifyError
from veen.core.evidence import Equivocation

__all__ = [
    "BadAnswer",
    "CardInvalid",
    "ClientError",
    "Divergence",
    "Dropped",
    "Equivocated",
    "ExtraMissing",
    "ForeignKey",
    "HubRefused",
    "IdentityExists",
    "IdentityInUse",
    "IdentityMissing",
    "KeyTextInvalid",
    "KeystoreDamaged",
    "LocalError",
    "NameInvalid",
    "NetworkError",
    "NoReaderKey",
    "NotPinned",
    "PortableSetInvalid",
    "PrekeyExpired",
    "ProofInvalid",
    "ReceiptMismatch",
    "Reordered",
    "RetiredKey",
    "Rewound",
    "RootMismatch",
    "RotationDue",
    "StaleCheckpoint",
    "StateDamaged",
    "TimedOut",
    "TokenExpired",
    "TokenMissing",
    "UnknownStream",
    "Unreachable",
    "WrongPassphrase",
]


class ClientError(VeenError):
    """Base of all that the client library raises on purpose."""

    code: str = "E.CLIENT"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


# --- this machine (exit 5) ----------------------------------------------------------------------------------


class LocalError(ClientError):
    """Keys, configuration or state on this machine are not as they must be."""

    code = "E.LOCAL"
    hint = "`veen doctor` checks keys, configuration and permissions."


class NameInvalid(LocalError):
    """A name that no identity can have."""

    code = "E.LOCAL.NAME"
    hint = "Use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or a digit."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name[:80]!r} cannot be the name of an identity"


class IdentityMissing(LocalError):
    """There is no identity of this name."""

    code = "E.LOCAL.IDENTITY"
    hint = "`veen id list` shows the identities that exist; `veen keygen --name NAME` makes one."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no identity {self.name!r}"


class IdentityExists(LocalError):
    """An identity of this name exists and would be lost."""

    code = "E.LOCAL.EXISTS"
    hint = "Choose another name with `--name`; the keys of an identity that is overwritten cannot come back."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the identity {self.name!r} exists already"


class IdentityInUse(LocalError):
    """Another process uses the identity: two would give one client_seq to two messages."""

    code = "E.LOCAL.IN_USE"
    hint = "Wait for the other process or stop it; or give each process an identity of its own (`veen keygen`)."

    def __init__(self, name: str, pid: int | None = None) -> None:
        super(ClientError, self).__init__(name, pid)
        self.name, self.pid = name, pid

    def __str__(self) -> str:
        holder = "another process" if self.pid is None else f"process {self.pid}"
        return f"the identity {self.name!r} is in use by {holder}"


class WrongPassphrase(LocalError):
    """The passphrase does not open the keystore, whose bytes are as they were written."""

    code = "E.LOCAL.PASSPHRASE"
    hint = "Try again, or give the file that holds the passphrase with `--passphrase-file FILE`."

    def __init__(self) -> None:
        super(ClientError, self).__init__()

    def __str__(self) -> str:
        return "the passphrase does not open the keystore"


class KeystoreDamaged(LocalError):
    """The bytes of a keystore are not those that were written, or ask for what no honest keystore asks."""

    code = "E.LOCAL.KEYSTORE"
    hint = "Restore keystore.enc from a backup or from an export (`veen id import`)."

    def __str__(self) -> str:
        return f"keystore.enc: {self.what}"


class StateDamaged(LocalError):
    """What the client remembered about a label is not what it wrote."""

    code = "E.LOCAL.STATE"
    hint = "Run: veen resync STREAM, which rebuilds the state from the hub's log and checks every entry of it."

    def __str__(self) -> str:
        return f"the local state is damaged: {self.what}"


class NotPinned(LocalError):
    """No key of this hub is known, so nothing it signs can be believed."""

    code = "E.LOCAL.PIN"
    hint = "Ask the hub's operator for hub_pk, then run: veen context add NAME --hub URL --pin ed25519:HEX"


class UnknownStream(LocalError):
    """The keyring knows nothing of this stream."""

    code = "E.LOCAL.STREAM"
    hint = "Add the stream's key with `veen id keyring add TEXT`, or make one with `veen id keyring new STREAM`."

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return f"the keyring has no key for the stream {self.stream!r}"


class NoReaderKey(LocalError):
    """The keyring can write to this stream, not read it (D-10)."""

    code = "E.LOCAL.READER"
    hint = "Ask a reader of the stream for its read key; reading is having that key, the hub cannot grant it."

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return f"the keyring holds only the write key of the stream {self.stream!r}"


class KeyTextInvalid(LocalError):
    """A key or card given as text was altered, cut off, or is another kind of text."""

    code = "E.LOCAL.TEXT"
    hint = "Copy the whole line again: it is one word, and a single wrong letter is noticed."


class CardInvalid(KeyTextInvalid):
    """An identity card that its identity did not sign."""

    code = "E.LOCAL.CARD"
    hint = "Ask for the card again, over a channel that you trust."


class PrekeyExpired(LocalError):
    """A prekey past its time seals nothing any more; it still opens what was sealed to it before (KEX0.2)."""

    code = "E.LOCAL.PREKEY"
    hint = "Ask the other side for a fresh prekey."

    def __init__(self, expires_at: int, now: int) -> None:
        super(ClientError, self).__init__(expires_at, now)
        self.expires_at, self.now = expires_at, now

    def __str__(self) -> str:
        return f"the prekey expired at {self.expires_at}, {self.now - self.expires_at} s ago"


class TokenMissing(LocalError):
    """No capability token allows this."""

    code = "E.LOCAL.TOKEN"
    hint = "Ask the issuer for a token for this client_id (`veen id show`), then run: veen authorize TOKEN"


class TokenExpired(LocalError):
    """The capability token has outlived its ttl (D-48)."""

    code = "E.LOCAL.TOKEN_EXPIRED"
    hint = "Ask the issuer to renew it (`veen cap renew TOKEN`), then run: veen authorize TOKEN"

    def __init__(self, auth_ref: bytes, expires_at: int) -> None:
        super(ClientError, self).__init__(auth_ref, expires_at)
        self.auth_ref, self.expires_at = auth_ref, expires_at

    def __str__(self) -> str:
        return f"the capability token {self.auth_ref.hex()[:16]}… expired at {self.expires_at}"


class RotationDue(LocalError):
    """The client key reached one of its bounds and must be replaced before it signs again (KEX1+)."""

    code = "E.LOCAL.ROTATION"
    hint = "Run: veen id rotate"


class PortableSetInvalid(LocalError):
    """A file of an exported set is not what was exported; `path` names it."""

    code = "E.LOCAL.SET"
    hint = "Copy the set again from its source; nothing was imported."

    def __init__(self, path: str, what: str) -> None:
        super(ClientError, self).__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class ExtraMissing(LocalError):
    """A feature needs a package that is not installed."""

    code = "E.EXTRA"
    hint = "Install it with the extra named above, for instance: pip install 'veen[all]'"

    def __init__(self, extra: str, feature: str) -> None:
        super(ClientError, self).__init__(extra, feature)
        self.extra, self.feature = extra, feature

    def __str__(self) -> str:
        return f"{self.feature} needs veen[{self.extra}]"


# --- the way to the hub (exit 3) ----------------------------------------------------------------------------


class NetworkError(ClientError):
    """Nothing is known about what the hub did: a retry resends the same bytes (D-56)."""

    code = "E.NET"
    hint = "Check the address and that the hub runs: veen hub status"


class Unreachable(NetworkError):
    """No connection, or it broke."""

    code = "E.NET.UNREACHABLE"


class TimedOut(NetworkError):
    """No answer in time."""

    code = "E.NET.TIMEOUT"
    hint = "Try again: what was sent is kept and resent byte for byte, so nothing is doubled."


class BadAnswer(NetworkError):
    """Something answered, but not in the protocol."""

    code = "E.NET.ANSWER"
    hint = "Check that the address is that of a VEEN hub, and not of a proxy or a login page in front of it."


# --- the hub said no (exit 4) -------------------------------------------------------------------------------


class HubRefused(ClientError):
    """The hub's answer, read for people; `detail` informs and decides nothing (CLNT-14)."""

    hint = "`veen explain CODE` tells what the code means and how to go on."

    def __init__(
        self,
        code: str,
        message: str,
        *,
        stage: str | None = None,
        detail_enum: str | None = None,
        retry_after: int | None = None,
        request_id: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super(ClientError, self).__init__(code, message)
        self.code, self.message, self.stage, self.detail_enum = code, message, stage, detail_enum
        self.retry_after, self.request_id = retry_after, request_id
        self.detail: Mapping[str, Any] = dict(detail or {})

    @classmethod
    def from_envelope(cls, envelope: ErrorEnvelope) -> Self:
        """Names of older documents are understood (D-55)."""
        detail = envelope.detail or {}
        stage, detail_enum = detail.get("stage"), detail.get("detail_enum")
        retired = RETIRED_CODES.get(envelope.code)
        if retired is not None:
            stage, detail_enum = retired.stage.value, retired.detail_enum
        return cls(
            envelope.code if retired is None else retired.code,
            envelope.message,
            stage=stage if isinstance(stage, str) else None,
            detail_enum=detail_enum if isinstance(detail_enum, str) else None,
            retry_after=envelope.retry_after,
            request_id=envelope.request_id,
            detail=detail,
        )

    def __str__(self) -> str:
        where = f" (stage {self.stage}, {self.detail_enum})" if self.stage and self.detail_enum else ""
        return f"the hub refused: {self.code}{where}: {self.message}"


# --- caught (exit 1) ----------------------------------------------------------------------------------------


class Divergence(ClientError, VerifyError):
    """What the hub says now does not fit what it signed, or what we know. Each kind has a class of its own.

    `label` and `seq` tell where; `expected` and `found` are the two values that cannot both be, as public bytes or
    numbers.
    """

    code = "E.DIVERGED"

    def __init__(
        self,
        what: str,
        *,
        label: bytes = b"",
        seq: int | None = None,
        expected: bytes | int | None = None,
        found: bytes | int | None = None,
    ) -> None:
        super().__init__(what)
        self.label, self.seq, self.expected, self.found = label, seq, expected, found

    def __str__(self) -> str:
        where = [f"label {self.label.hex()[:16]}…"] if self.label else []
        where += [f"seq {self.seq}"] if self.seq is not None else []
        text = f"{self.what} ({', '.join(where)})" if where else self.what
        if self.expected is None and self.found is None:
            return text
        return f"{text}: expected {_shown(self.expected)}, found {_shown(self.found)}"


class Equivocated(Divergence):
    """The hub signed two stories about one position; `evidence` convinces anyone, offline."""

    code = "E.DIVERGED.EQUIVOCATION"
    hint = "Keep the evidence file and publish it: `veen equivocation show FILE` checks it without any hub."

    def __init__(self, what: str, evidence: Equivocation, *, label: bytes = b"", seq: int | None = None) -> None:
        super().__init__(what, label=label, seq=seq)
        self.evidence = evidence
        self.args = (what, evidence)


class ForeignKey(Divergence):
    """Signed by a key that is not one of the pinned hub's."""

    code = "E.DIVERGED.FOREIGN_KEY"
    hint = "Someone else may be answering. Compare hub_pk with what the operator published before going on."


class RetiredKey(Divergence):
    """Signed by a key of the hub that was not valid at the time the statement carries (D-41)."""

    code = "E.DIVERGED.RETIRED_KEY"


class Rewound(Divergence):
    """The hub's log ends before what it already proved to us."""

    code = "E.DIVERGED.REWOUND"


class Reordered(Divergence):
    """Entries came in another order than the one the hub signed."""

    code = "E.DIVERGED.REORDERED"


class Dropped(Divergence):
    """An entry is missing that must be there."""

    code = "E.DIVERGED.DROPPED"


class StaleCheckpoint(Divergence):
    """A checkpoint that ends before what the hub already proved to us."""

    code = "E.DIVERGED.STALE_CHECKPOINT"


class RootMismatch(Divergence):
    """The entries do not fold into the root that the hub signed."""

    code = "E.DIVERGED.ROOT"


class ProofInvalid(Divergence):
    """A proof does not lead to the root it is for."""

    code = "E.DIVERGED.PROOF"


class ReceiptMismatch(Divergence):
    """A receipt that is not for the message that was sent."""

    code = "E.DIVERGED.RECEIPT"


def _shown(value: bytes | int | None) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 8 else f"{value.hex()[:16]}…"
    return "nothing" if value is None else str(value)
