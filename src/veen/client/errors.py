"""Every way a client says no, in four families that decide the exit code of the command line (UX: exit codes).

    LocalError      5   keys, configuration or state on this machine
    NetworkError    3   the hub was not reached, or what answered does not speak the protocol
    HubRefused      4   the hub answered, and said no
    Divergence      1   the hub, or someone in its place, was caught: evidence, never papered over

As in the core, errors carry data and survive pickling, the words are derived, and nothing here holds a secret.
`code` is stable and names the error in JSON output and for `veen explain`; message and hint are those of its row in
`veen/core/errors.toml`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Self

from veen.core.errors import RETIRED_CODES, MalformedError, VeenError, VerifyError
from veen.core.extras import install_hint
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.evidence import Equivocation

__all__ = [
    "BadAnswer",
    "BrokerRefused",
    "CardInvalid",
    "CertificateUnverified",
    "ClientError",
    "ContactExists",
    "ContactUnknown",
    "Divergence",
    "Dropped",
    "Equivocated",
    "ExtraMissing",
    "ForeignKey",
    "GenerationRefused",
    "HubIdChanged",
    "HubRefused",
    "IdentityExists",
    "IdentityInUse",
    "IdentityMissing",
    "InsecureHttp",
    "InviteConflict",
    "InviteDamaged",
    "InviteError",
    "InviteExpired",
    "InviteForAnother",
    "InviteTruncated",
    "KeyTextInvalid",
    "KeystoreDamaged",
    "LocalError",
    "NameInvalid",
    "NetworkError",
    "NoReaderKey",
    "NotAnInvite",
    "NotOwner",
    "NotPinned",
    "NotReader",
    "OlderHub",
    "OpenPermissions",
    "PortableSetInvalid",
    "PrekeyExpired",
    "PrekeyMissing",
    "ProofInvalid",
    "ReceiptMismatch",
    "Reordered",
    "RetiredKey",
    "Rewound",
    "RootMismatch",
    "RotationDue",
    "SettingsError",
    "StaleCheckpoint",
    "StateDamaged",
    "StreamKeysExist",
    "TimedOut",
    "TokenExpired",
    "TokenMissing",
    "UnknownStream",
    "Unreachable",
    "WrongCode",
    "WrongPassphrase",
]


_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_MAX_MESSAGE: Final = 1_000  # characters of what a hub says to people


class ClientError(VeenError):
    """Base of all that the client library raises on purpose."""

    code: str = "E.CLIENT"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        message = self.row.message
        return message.format(error=self) if message else self.what


# --- this machine (exit 5) ----------------------------------------------------------------------------------


class LocalError(ClientError):
    """Keys, configuration or state on this machine are not as they must be."""

    code = "E.LOCAL"


class SettingsError(LocalError):
    """A configuration that cannot be used: its own code, what, why, and what mends it."""

    def __init__(self, code: str, what: str, cause: str, hint: str) -> None:
        super(ClientError, self).__init__(code, what, cause, hint)
        self.code, self.what, self.cause = code, what, cause
        self.remedy = hint  # the words of the error itself, in place of the hint of its row

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}"


class NameInvalid(LocalError):
    """A name that no identity can have."""

    code = "E.LOCAL.NAME"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class IdentityMissing(LocalError):
    """There is no identity of this name."""

    code = "E.LOCAL.IDENTITY"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class IdentityExists(LocalError):
    """An identity of this name exists and would be lost."""

    code = "E.LOCAL.EXISTS"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class IdentityInUse(LocalError):
    """Another process uses the identity: two would give one client_seq to two messages."""

    code = "E.LOCAL.IN_USE"

    def __init__(self, name: str, pid: int | None = None) -> None:
        super(ClientError, self).__init__(name, pid)
        self.name, self.pid = name, pid

    @property
    def holder(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


class WrongPassphrase(LocalError):
    """The passphrase does not open the keystore, whose bytes are as they were written."""

    code = "E.LOCAL.PASSPHRASE"

    def __init__(self) -> None:
        super(ClientError, self).__init__()


class KeystoreDamaged(LocalError):
    """The bytes of a keystore are not those that were written, or ask for what no honest keystore asks."""

    code = "E.LOCAL.KEYSTORE"


class StateDamaged(LocalError):
    """What the client remembered about a label is not what it wrote."""

    code = "E.LOCAL.STATE"


class NotPinned(LocalError):
    """No key of this hub is known, so nothing it signs can be believed."""

    code = "E.LOCAL.PIN"


class OpenPermissions(LocalError):
    """A file with a secret that other users of this machine may read or write."""

    code = "E.LOCAL.PERMISSIONS"

    def __init__(self, path: str, mode: int) -> None:
        super(ClientError, self).__init__(path, mode)
        self.path, self.mode = path, mode


class InsecureHttp(LocalError):
    """A secret would go over the network in the clear."""

    code = "E.LOCAL.PLAIN_HTTP"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class UnknownStream(LocalError):
    """The keyring knows nothing of this stream."""

    code = "E.LOCAL.STREAM"

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class NoReaderKey(LocalError):
    """The keyring can write to this stream, not read it (D-10)."""

    code = "E.LOCAL.READER"

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class NotOwner(LocalError):
    """Only the owner of a stream hands its read key over and announces generations (D-171)."""

    code = "E.LOCAL.OWNER"

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class StreamKeysExist(LocalError):
    """The stream has keys already; new ones made beside them would lock its readers out."""

    code = "E.LOCAL.KEYS_EXIST"

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class NotReader(LocalError):
    """Somebody is not among the readers of a stream, by the hand-overs in its log."""

    code = "E.LOCAL.MEMBER"


class GenerationRefused(LocalError):
    """A generation of keys that does not exist, is in use, or was announced by somebody else meanwhile."""

    code = "E.LOCAL.GENERATION"


class ContactUnknown(LocalError):
    """There is no contact of this name."""

    code = "E.LOCAL.CONTACT"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ContactExists(LocalError):
    """A name or a card is taken by another contact."""

    code = "E.LOCAL.CONTACT_EXISTS"


class InviteError(LocalError):
    """An invitation cannot be used. Nothing of it was kept."""

    code = "E.INVITE"


class NotAnInvite(InviteError):
    """The file or word is something else."""

    code = "E.INVITE.KIND"


class InviteTruncated(InviteError):
    """The end of the invitation is missing."""

    code = "E.INVITE.TRUNCATED"


class InviteDamaged(InviteError):
    """The invitation is not the one that was written."""

    code = "E.INVITE.DAMAGED"


class InviteForAnother(InviteError):
    """The invitation is sealed for another card."""

    code = "E.INVITE.RECIPIENT"


class WrongCode(InviteError):
    """The one-time code is not that of this invitation."""

    code = "E.INVITE.CODE"

    def __init__(self) -> None:
        super().__init__("the code does not open this invitation")


class InviteExpired(InviteError):
    """The time of the invitation is over."""

    code = "E.INVITE.EXPIRED"

    def __init__(self, expires_at: int, now: int) -> None:
        super(ClientError, self).__init__(expires_at, now)
        self.expires_at, self.now = expires_at, now

    @property
    def age(self) -> int:
        """Seconds since it expired."""
        return self.now - self.expires_at


class InviteConflict(InviteError):
    """The keyring follows another owner of a stream than the one in the invitation."""

    code = "E.INVITE.OWNER"


class KeyTextInvalid(LocalError):
    """A key or card given as text was altered, cut off, or is another kind of text."""

    code = "E.LOCAL.TEXT"


class CardInvalid(KeyTextInvalid):
    """An identity card that its identity did not sign."""

    code = "E.LOCAL.CARD"


class PrekeyExpired(LocalError):
    """A prekey past its time seals nothing any more; it still opens what was sealed to it before (KEX0.2)."""

    code = "E.LOCAL.PREKEY"

    def __init__(self, expires_at: int, now: int) -> None:
        super(ClientError, self).__init__(expires_at, now)
        self.expires_at, self.now = expires_at, now

    @property
    def age(self) -> int:
        """Seconds since it expired."""
        return self.now - self.expires_at


class PrekeyMissing(LocalError):
    """Nobody published a prekey that is live, so nothing can be sealed to one."""

    code = "E.LOCAL.NO_PREKEY"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class TokenMissing(LocalError):
    """No capability token allows this."""

    code = "E.LOCAL.TOKEN"


class TokenExpired(LocalError):
    """The capability token has outlived its ttl (D-48)."""

    code = "E.LOCAL.TOKEN_EXPIRED"

    def __init__(self, auth_ref: bytes, expires_at: int) -> None:
        super(ClientError, self).__init__(auth_ref, expires_at)
        self.auth_ref, self.expires_at = auth_ref, expires_at

    @property
    def token(self) -> str:
        """The beginning of the token's auth_ref, which is public."""
        return self.auth_ref.hex()[:16]


class RotationDue(LocalError):
    """The client key reached one of its bounds and must be replaced before it signs again (KEX1+)."""

    code = "E.LOCAL.ROTATION"


class PortableSetInvalid(LocalError):
    """A file of an exported set is not what was exported; `path` names it."""

    code = "E.LOCAL.SET"

    def __init__(self, path: str, what: str) -> None:
        super(ClientError, self).__init__(path, what)
        self.path, self.what = path, what


class ExtraMissing(LocalError):
    """A feature needs a package that is not installed."""

    code = "E.EXTRA"

    def __init__(self, extra: str, feature: str) -> None:
        super(ClientError, self).__init__(extra, feature)
        self.extra, self.feature = extra, feature
        self.remedy = install_hint(extra)


# --- the way to the hub (exit 3) ----------------------------------------------------------------------------


class NetworkError(ClientError):
    """Nothing is known about what the hub did: a retry resends the same bytes (D-56)."""

    code = "E.NET"


class Unreachable(NetworkError):
    """No connection, or it broke."""

    code = "E.NET.UNREACHABLE"


class CertificateUnverified(NetworkError):
    """The hub's certificate could not be verified, so no request was sent."""

    code = "E.NET.CERTIFICATE"


class BrokerRefused(NetworkError):
    """The NATS server on the way to the hub does not let us in, or not to this subject."""

    code = "E.NET.BROKER"


class TimedOut(NetworkError):
    """No answer in time."""

    code = "E.NET.TIMEOUT"


class BadAnswer(NetworkError):
    """Something answered, but not in the protocol."""

    code = "E.NET.ANSWER"


# --- the hub said no (exit 4) -------------------------------------------------------------------------------


class HubRefused(ClientError):
    """The hub's answer, read for people; `detail` informs and decides nothing (CLNT-14)."""

    code = "E.VERSION"  # an error has the hub's own; a code that this release does not have comes from another version

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
        """Names of older documents are understood (D-55); MalformedError for a code that cannot be one.

        All of it is text of a stranger: what is no word is left out, and a message has an end.
        """
        detail = envelope.detail or {}
        stage, detail_enum = _word(detail.get("stage")), _word(detail.get("detail_enum"))
        if _word(envelope.code) is None:
            raise MalformedError("expected the code of an error", f"{envelope.KIND}.code")
        retired = RETIRED_CODES.get(envelope.code)
        if retired is not None:
            stage, detail_enum = retired.stage.value, retired.detail_enum
        return cls(
            envelope.code if retired is None else retired.code,
            envelope.message if len(envelope.message) <= _MAX_MESSAGE else f"{envelope.message[:_MAX_MESSAGE]}…",
            stage=stage,
            detail_enum=detail_enum,
            retry_after=envelope.retry_after,
            request_id=_word(envelope.request_id),
            detail=detail,
        )

    def __str__(self) -> str:
        where = f" (stage {self.stage}, {self.detail_enum})" if self.stage and self.detail_enum else ""
        return f"the hub refused: {self.code}{where}: {self.message}"


def _word(value: Any) -> str | None:
    """A name as the protocol has them, or None."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


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

    def __init__(self, what: str, evidence: Equivocation, *, label: bytes = b"", seq: int | None = None) -> None:
        super().__init__(what, label=label, seq=seq)
        self.evidence = evidence
        self.args = (what, evidence)


class ForeignKey(Divergence):
    """Signed by a key that is not one of the pinned hub's."""

    code = "E.DIVERGED.FOREIGN_KEY"


class HubIdChanged(Divergence):
    """A hub answers under another hub_id than the pinned one: another log, whatever key it shows (D-174)."""

    code = "E.DIVERGED.HUB_ID"


class OlderHub(Divergence):
    """A hub of the pinned root answers that is older than another one which this client has met (D-121)."""

    code = "E.DIVERGED.OLDER_HUB"


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
