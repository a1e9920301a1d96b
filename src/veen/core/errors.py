"""The errors of the protocol: exceptions, error codes and the admission table (spec §8.2, §10.6).

Errors carry data and survive pickling (`args` mirror `__init__`); their texts are derived from the data. Meaning, exit
status and remedy of a code are in `errors.toml`, which `veen.core.catalogue` reads. No error holds a key, a plaintext
or a ciphertext, so any of them may be logged.
"""

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, cast

if TYPE_CHECKING:
    from veen.core.catalogue import ErrorRow


class _HintOfCode:
    """Remedy from the row of an error's code. A descriptor: classes and their errors have it."""

    def __get__(self, error: "VeenError | None", kind: "type[VeenError]") -> str:
        remedy = getattr(error, "remedy", None)  # an error may know better than the row of its code
        return remedy if isinstance(remedy, str) else _row_of(kind if error is None else error).hint


class VeenError(Exception):
    """Base of every error we raise on purpose.

    The `code` of a class decides the exit status of a command that it ends. An error may have a more precise code of
    its own. The words of a code are those of its row in the catalogue.
    """

    code: str = "E.LOCAL"
    # A class sets a hint only if it shares its code with other errors, and knows better than their row what to do.
    hint: ClassVar[str] = cast("str", _HintOfCode())

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    @property
    def row(self) -> "ErrorRow":
        """The row of the most precise code that the catalogue has: of the error's detail, its own, or its class's."""
        return _row_of(self)


def _row_of(error: "VeenError | type[VeenError]") -> "ErrorRow":
    from veen.core.catalogue import catalogue

    kind = error if isinstance(error, type) else type(error)
    rows = catalogue()
    codes = (getattr(error, name, None) for name in ("detail_enum", "error_code", "code"))
    return next((rows[code] for code in codes if isinstance(code, str) and code in rows), rows[kind.code])


class StatedError(VeenError):
    """An error whose text is one sentence, written where it is raised."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class FormatError(VeenError, code="E.FORMAT"):
    """The bytes are not the one canonical encoding of the object they claim to be (I10)."""


class MalformedError(FormatError):
    """Not deterministic CBOR (or its JSON form), or an item is missing, superfluous or of the wrong type."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what, where)
        self.what, self.where = what, where

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class FieldSizeError(FormatError):
    """A byte string or list has a size the spec does not allow there."""

    def __init__(self, where: str, expected: str, actual: int) -> None:
        super().__init__(where, expected, actual)
        self.where, self.expected, self.actual = where, expected, actual

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.actual}"


class VersionError(FormatError):
    """A well-formed object of an unknown version."""

    hint = "Use a VEEN release that supports this version."

    def __init__(self, where: str, actual: int) -> None:
        super().__init__(where, actual)
        self.where, self.actual = where, actual

    def __str__(self) -> str:
        return f"{self.where}: version {self.actual} is not supported (this release supports version 1)"


class PaddingError(FormatError):
    """Bytes after the declared parts of a ciphertext are not all zero (D-17)."""

    def __str__(self) -> str:
        return "ciphertext: padding holds a non-zero byte"


class LimitError(VeenError, code="E.SIZE"):
    """A value exceeds the limit registry (spec §14)."""

    def __init__(self, name: str, actual: int, maximum: int) -> None:
        super().__init__(name, actual, maximum)
        self.name, self.actual, self.maximum = name, actual, maximum

    def __str__(self) -> str:
        return f"{self.name}: {self.actual} is above the maximum of {self.maximum}"


class InvalidKeyError(StatedError, code="E.LOCAL.KEY"):
    """Key material that no honest party produces: wrong length, or a low-order point."""


class VerifyError(StatedError, code="E.VERIFY"):
    """Evidence is bad: what was claimed does not hold."""


class SignatureError(VerifyError):
    """A signature does not verify under the key it must verify under."""


class ProofError(VerifyError):
    """A Merkle proof does not lead to the expected root, or is not the minimal one (spec §5.4)."""


class CapabilityError(VerifyError):
    """A capability token breaks a rule of spec §6."""


class EvidenceError(VerifyError):
    """An equivocation report does not prove what it claims."""


class OpenError(VeenError, code="E.LOCAL.OPEN"):
    """A ciphertext that cannot be opened. The text does not tell a wrong key from altered bytes on purpose."""

    def __str__(self) -> str:
        return "cannot be opened: wrong key or altered bytes"


class AmbiguousError(VeenError):
    """A ciphertext that opens under two keys of its stream: its sender made it so, and two readers could differ."""

    hint = "Use neither content, and ask the sender for another message. The log itself is not damaged."

    def __str__(self) -> str:
        return "opens under more than one key of the stream"


class Stage(Enum):
    """The stages of admission, in the order they run (spec §8.1)."""

    PREFILTER = "prefilter"
    STRUCTURAL = "structural"
    AUTH = "auth"
    COMMIT = "commit"


class Refusal(Enum):
    """The reasons for which admission refuses a message, in the order of the checks (spec §8.2, decisions §7).

    The order of the members is normative: the first check that fails decides the answer.
    """

    # The name leads each row so that no two rows are equal: Enum makes equal values aliases.
    SIZE_PREFILTER = ("SIZE_PREFILTER", Stage.PREFILTER, "E.SIZE", 413)
    PREFILTER_REJECT = ("PREFILTER_REJECT", Stage.PREFILTER, "E.AUTH", 403)
    CBOR_INVALID = ("CBOR_INVALID", Stage.STRUCTURAL, "E.FORMAT", 400)
    FIELD_SIZE = ("FIELD_SIZE", Stage.STRUCTURAL, "E.SIZE", 413)
    VERSION = ("VERSION", Stage.STRUCTURAL, "E.FORMAT", 400)
    PROFILE = ("PROFILE", Stage.STRUCTURAL, "E.FORMAT", 400)
    CT_HASH = ("CT_HASH", Stage.STRUCTURAL, "E.FORMAT", 400)
    CT_PADDING = ("CT_PADDING", Stage.STRUCTURAL, "E.FORMAT", 400)
    ATT_ROOT = ("ATT_ROOT", Stage.STRUCTURAL, "E.FORMAT", 400)  # reserved: a hub cannot see it (D-15)
    SIG_INVALID = ("SIG_INVALID", Stage.AUTH, "E.SIG", 409)
    NOT_PRIMARY = ("NOT_PRIMARY", Stage.AUTH, "E.AUTH", 403)
    CAP_MISSING = ("CAP_MISSING", Stage.AUTH, "E.CAP", 403)
    CAP_INVALID = ("CAP_INVALID", Stage.AUTH, "E.CAP", 403)
    AUTH_REF = ("AUTH_REF", Stage.AUTH, "E.AUTH", 403)
    CAP_SCOPE = ("CAP_SCOPE", Stage.AUTH, "E.CAP", 403)
    CAP_REVOKED = ("CAP_REVOKED", Stage.AUTH, "E.CAP", 403)
    CLIENT_REVOKED = ("CLIENT_REVOKED", Stage.AUTH, "E.CAP", 403)
    CAP_TTL = ("CAP_TTL", Stage.AUTH, "E.TIME", 400)
    CAP_RATE = ("CAP_RATE", Stage.AUTH, "E.RATE", 429)
    CLIENT_LIFETIME = ("CLIENT_LIFETIME", Stage.AUTH, "E.AUTH", 403)
    CLIENT_QUOTA = ("CLIENT_QUOTA", Stage.AUTH, "E.AUTH", 403)
    PREV_ACK = ("PREV_ACK", Stage.COMMIT, "E.SEQ", 409)
    DUPLICATE = ("DUPLICATE", Stage.COMMIT, "E.SEQ", 409)
    CLIENT_SEQ = ("CLIENT_SEQ", Stage.COMMIT, "E.SEQ", 409)
    EPOCH = ("EPOCH", Stage.COMMIT, "E.TIME", 400)

    def __init__(self, detail_enum: str, stage: Stage, code: str, http_status: int) -> None:
        self.detail_enum, self.stage, self.code, self.http_status = detail_enum, stage, code, http_status


class Refused(VeenError, code="E.BAD_REQUEST"):
    """Refusal of a message by admission; `refusal` is the whole reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal, self.code = refusal, refusal.code

    @property
    def detail_enum(self) -> str:
        return self.refusal.detail_enum

    def __str__(self) -> str:
        return f"{self.refusal.code} (stage {self.refusal.stage.value}, {self.refusal.detail_enum})"


class ApiCode(Enum):
    """Codes for faults of the request itself, outside admission (spec §10.6)."""

    BAD_REQUEST = ("E.BAD_REQUEST", 400)
    UNAUTHORIZED = ("E.UNAUTHORIZED", 401)
    FORBIDDEN = ("E.FORBIDDEN", 403)
    NOT_FOUND = ("E.NOT_FOUND", 404)
    CONFLICT = ("E.CONFLICT", 409)
    LIMIT = ("E.LIMIT", 413)
    RATE = ("E.RATE", 429)  # not in §10.6, which limits no reader; COMP0.3 does
    UNAVAILABLE = ("E.UNAVAILABLE", 503)
    VERSION = ("E.VERSION", 400)

    def __init__(self, code: str, http_status: int) -> None:
        self.code, self.http_status = code, http_status


# Names that older documents use for the same refusals; clients understand them on input (D-55).
RETIRED_CODES: dict[str, Refusal] = {
    "E.PROFILE": Refusal.PROFILE,
    "E.DUP": Refusal.DUPLICATE,
}
