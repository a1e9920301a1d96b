"""The error family: what the command line and scripts rely on."""

import inspect
import pickle

import pytest
from tests.client.builders import HubLog, identity, message

from veen.client import errors
from veen.client.errors import (
    ClientError,
    Divergence,
    Equivocated,
    HubRefused,
    IdentityInUse,
    LocalError,
    NetworkError,
    Rewound,
    TokenExpired,
)
from veen.core.errors import Refusal, VeenError, VerifyError
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.evidence import Equivocation

FAMILIES = (LocalError, NetworkError, HubRefused, Divergence)
CLASSES = [
    value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, ClientError) and not name.startswith("_")
]


def test_every_error_belongs_to_exactly_one_family():
    """UX: the family is the exit code."""
    for cls in CLASSES:
        assert issubclass(cls, ClientError)
        if cls is not ClientError:
            assert sum(issubclass(cls, family) for family in FAMILIES) == 1, cls
    assert issubclass(Divergence, VerifyError)


def test_codes_are_stable_names_of_their_own_and_hints_are_for_the_error_at_hand():
    codes = [cls.code for cls in CLASSES if "code" in vars(cls)]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith("E.") for code in codes)
    for cls in CLASSES:
        if cls not in (ClientError, LocalError, errors.SettingsError):  # the last one always brings its own
            assert cls.hint != VeenError.hint, cls


def samples():
    hub, alice = HubLog(), identity()
    label = hub.label("room")
    first, second = (message(alice.client_key.key, label, 1, ciphertext=bytes([n]) * 40) for n in (1, 2))
    receipt, other = hub.admit(first), HubLog().admit(second)
    two = sorted([receipt, other], key=lambda one: one.to_bytes())
    evidence = Equivocation(hub_pks=(hub.key.public,), first=two[0], second=two[1])
    yield Equivocated("two receipts for one place", evidence, label=label, seq=1)
    yield Rewound("the log ends early", label=label, seq=3, expected=5, found=3)
    yield IdentityInUse("alice", 7)
    yield TokenExpired(bytes(32), 5)
    yield HubRefused("E.SEQ", "words", stage="commit", detail_enum="DUPLICATE", request_id="r-1", detail={"a": 1})
    yield errors.WrongPassphrase()
    yield errors.PortableSetInvalid("receipts.cborseq", "altered")


@pytest.mark.parametrize("error", list(samples()), ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_all_it_carries(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_divergence_tells_where_and_both_values():
    error = Rewound("the log ends early", label=b"\xab" * 32, seq=3, expected=b"\x01" * 32, found=None)
    assert str(error) == f"the log ends early (label {'ab' * 8}…, seq 3): expected {'01' * 8}…, found nothing"
    assert str(Rewound("only words")) == "only words"
    assert str(Rewound("numbers", expected=5, found=b"\x07")) == "numbers: expected 5, found 07"


@pytest.mark.req("CLNT-14")
def test_what_the_hub_answers_is_read_and_decides_nothing():
    """`detail` may hold anything: a stage that is no text is not taken for one."""
    error = HubRefused.from_envelope(
        ErrorEnvelope.refusal(Refusal.CAP_RATE, "slow down", detail={"left": 0}, retry_after=3, request_id="r-9")
    )
    assert (error.code, error.stage, error.detail_enum) == ("E.RATE", "auth", "CAP_RATE")
    assert (error.message, error.retry_after, error.request_id, error.detail["left"]) == ("slow down", 3, "r-9", 0)
    assert str(error) == "the hub refused: E.RATE (stage auth, CAP_RATE): slow down"
    odd = HubRefused.from_envelope(ErrorEnvelope(code="E.NEW", message="m", detail={"stage": 5, "detail_enum": [1]}))
    assert (odd.code, odd.stage, odd.detail_enum, str(odd)) == ("E.NEW", None, None, "the hub refused: E.NEW: m")
    assert HubRefused.from_envelope(ErrorEnvelope(code="E.LIMIT", message="")).detail == {}


@pytest.mark.parametrize(
    ("old", "code", "detail_enum"), [("E.PROFILE", "E.FORMAT", "PROFILE"), ("E.DUP", "E.SEQ", "DUPLICATE")]
)
def test_retired_codes_are_understood(old, code, detail_enum):
    """D-55"""
    error = HubRefused.from_envelope(ErrorEnvelope(code=old, message="m"))
    assert (error.code, error.detail_enum) == (code, detail_enum)
