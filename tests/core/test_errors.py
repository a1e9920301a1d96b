"""Errors and the admission table: spec §8.2, §10.6, decisions §7."""

import pickle

import pytest

from veen.core import errors
from veen.core.errors import RETIRED_CODES, ApiCode, Refusal, Refused, Stage, VeenError

# decisions §7, row by row: stage, code, detail_enum, HTTP status. ATT_ROOT is in spec §8.2 alone (D-15).
ADMISSION = [
    ("prefilter", "E.SIZE", "SIZE_PREFILTER", 413),
    ("prefilter", "E.AUTH", "PREFILTER_REJECT", 403),
    ("structural", "E.FORMAT", "CBOR_INVALID", 400),
    ("structural", "E.SIZE", "FIELD_SIZE", 413),
    ("structural", "E.FORMAT", "VERSION", 400),
    ("structural", "E.FORMAT", "PROFILE", 400),
    ("structural", "E.FORMAT", "CT_HASH", 400),
    ("structural", "E.FORMAT", "CT_PADDING", 400),
    ("structural", "E.FORMAT", "ATT_ROOT", 400),
    ("auth", "E.SIG", "SIG_INVALID", 409),
    ("auth", "E.AUTH", "NOT_PRIMARY", 403),
    ("auth", "E.CAP", "CAP_MISSING", 403),
    ("auth", "E.CAP", "CAP_INVALID", 403),
    ("auth", "E.AUTH", "AUTH_REF", 403),
    ("auth", "E.CAP", "CAP_SCOPE", 403),
    ("auth", "E.CAP", "CAP_REVOKED", 403),
    ("auth", "E.CAP", "CLIENT_REVOKED", 403),
    ("auth", "E.TIME", "CAP_TTL", 400),
    ("auth", "E.RATE", "CAP_RATE", 429),
    ("auth", "E.AUTH", "CLIENT_LIFETIME", 403),
    ("auth", "E.AUTH", "CLIENT_QUOTA", 403),
    ("commit", "E.SEQ", "PREV_ACK", 409),
    ("commit", "E.SEQ", "DUPLICATE", 409),
    ("commit", "E.SEQ", "CLIENT_SEQ", 409),
    ("commit", "E.TIME", "EPOCH", 400),
]

# One of each kind that is ever raised, with all its data.
SAMPLES = [
    errors.MalformedError("expected an array", "MSG"),
    errors.MalformedError("expected an array"),
    errors.FieldSizeError("MSG.label", "32 bytes", 31),
    errors.VersionError("MSG", 2),
    errors.PaddingError(),
    errors.LimitError("max_msg_bytes", 2, 1),
    errors.InvalidKeyError("a hub key has 32 bytes"),
    errors.VerifyError("ct_hash differs"),
    errors.SignatureError("hub_sig does not verify"),
    errors.ProofError("the proof is for another leaf"),
    errors.CapabilityError("link 2 does not verify"),
    errors.EvidenceError("the two statements agree"),
    errors.OpenError(),
    errors.AmbiguousError(),
    *(Refused(refusal) for refusal in Refusal),
]
GROUPS = {VeenError, errors.FormatError, errors.StatedError}  # bases that are caught, never raised


def subclasses(cls: type[VeenError]) -> set[type[VeenError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


def core_errors() -> set[type[VeenError]]:
    return {cls for cls in subclasses(VeenError) if cls.__module__ == errors.__name__}


@pytest.mark.req("ERR-02")
def test_refusals_are_the_admission_table_in_its_order():
    """spec §8.2: the table is the normative ordering; first failure wins."""
    table = [(refusal.stage.value, refusal.code, refusal.detail_enum, refusal.http_status) for refusal in Refusal]
    assert table == ADMISSION
    assert [refusal.name for refusal in Refusal] == [row[2] for row in ADMISSION]


@pytest.mark.req("ERR-01")
def test_admission_uses_the_eight_codes_and_the_four_stages():
    """spec §8.1, §8.2"""
    codes = {"E.FORMAT", "E.SIZE", "E.SIG", "E.CAP", "E.AUTH", "E.RATE", "E.SEQ", "E.TIME"}
    assert {refusal.code for refusal in Refusal} == codes
    assert [stage.value for stage in Stage] == ["prefilter", "structural", "auth", "commit"]
    order = list(Stage)
    places = [order.index(refusal.stage) for refusal in Refusal]
    assert places == sorted(places)


@pytest.mark.req("ERR-07")
def test_each_code_has_its_http_status():
    """spec-1 OP0.1: SIZE 413, RATE 429, AUTH and CAP 403, TIME and FORMAT 400, SIG and SEQ 409."""
    status = {"E.SIZE": 413, "E.RATE": 429, "E.AUTH": 403, "E.CAP": 403, "E.TIME": 400, "E.FORMAT": 400}
    status |= {"E.SIG": 409, "E.SEQ": 409}
    assert {(refusal.code, refusal.http_status) for refusal in Refusal} == set(status.items())


@pytest.mark.req("ERR-05")
def test_api_codes_are_those_of_the_spec():
    """spec §10.6, and the one of §8.2 for readers that COMP0.3 wants limited"""
    assert [(code.code, code.http_status) for code in ApiCode] == [
        ("E.BAD_REQUEST", 400),
        ("E.UNAUTHORIZED", 401),
        ("E.FORBIDDEN", 403),
        ("E.NOT_FOUND", 404),
        ("E.CONFLICT", 409),
        ("E.LIMIT", 413),
        ("E.RATE", 429),
        ("E.UNAVAILABLE", 503),
        ("E.VERSION", 400),
    ]


def test_retired_codes_point_to_their_successors():
    """D-55: E.PROFILE → E.FORMAT/PROFILE, E.DUP → E.SEQ/DUPLICATE; never a code that is in use."""
    assert {"E.PROFILE": Refusal.PROFILE, "E.DUP": Refusal.DUPLICATE} == RETIRED_CODES
    assert not set(RETIRED_CODES) & {refusal.code for refusal in Refusal}


# --- errors as values ---------------------------------------------------------------------------------------


def test_there_is_a_sample_of_every_error():
    """An error that is added without one would escape the tests below."""
    assert {type(sample) for sample in SAMPLES} == core_errors() - GROUPS
    assert not [cls for cls in core_errors() if cls.__name__.startswith("_")]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: str(error)[:40])
def test_an_error_survives_pickling(error):
    """House rule: args mirror __init__, so an error can travel between processes."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes, made one call before
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: str(error)[:40])
def test_an_error_speaks_and_gives_a_hint(error):
    """Whoever meets it learns what happened and how to go on."""
    assert str(error).strip()
    assert "\n" not in str(error)
    assert error.hint.strip().endswith(".")
    assert error.hint != VeenError.hint  # that one is for any error of this machine


@pytest.mark.parametrize("cls", sorted(core_errors(), key=str), ids=lambda cls: cls.__name__)
def test_every_class_of_error_has_a_hint_and_says_what_it_is_for(cls):
    """House rule: errors carry data; the words are derived."""
    assert cls.hint.strip()
    assert cls.__doc__.strip()


def test_the_words_tell_the_data():
    """House rule"""
    texts = [str(sample) for sample in SAMPLES[:7]]
    assert texts == [
        "MSG: expected an array",
        "expected an array",
        "MSG.label: expected 32 bytes, found 31",
        "MSG: version 2 is not supported (this release supports version 1)",
        "ciphertext: padding holds a non-zero byte",
        "max_msg_bytes: 2 is above the maximum of 1",
        "a hub key has 32 bytes",
    ]
    assert str(Refused(Refusal.CAP_TTL)) == "E.TIME (stage auth, CAP_TTL)"


def test_a_failed_opening_tells_nothing():
    """A wrong key and altered bytes look the same to an attacker."""
    assert errors.OpenError().args == ()
    assert str(errors.OpenError()) == str(errors.OpenError("secret"))
