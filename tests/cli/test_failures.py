"""From exceptions to exit codes: every error has its own, every name in a table is real."""

import importlib
import pickle
import re
import socket
import ssl
import tomllib
from pathlib import Path

import pytest
from tests.cases import every

from veen.cli.shared.failures import EXTRAS, FOREIGN, REFUSALS, failing_as, failure_of
from veen.cli.shared.output import Exit, Fail
from veen.client import errors as client
from veen.core import errors as core
from veen.core.catalogue import catalogue
from veen.io import errors as storage


@pytest.mark.parametrize("name", [*FOREIGN, *REFUSALS])
def test_every_name_in_the_table_is_a_class_of_errors(name):
    module, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    assert issubclass(kind, Exception)
    assert f"{kind.__module__}.{kind.__qualname__}" == name  # otherwise it would never match


CASES: list[tuple[Exception, Exit, str]] = [
    (client.WrongPassphrase(), Exit.LOCAL, "E.LOCAL.PASSPHRASE"),
    (client.IdentityInUse("alice", 7), Exit.LOCAL, "E.LOCAL.IN_USE"),
    (client.NotPinned("no pin"), Exit.LOCAL, "E.LOCAL.PIN"),
    (client.ExtraMissing("quic", "QUIC"), Exit.LOCAL, "E.EXTRA"),
    (client.Unreachable("gone"), Exit.NETWORK, "E.NET.UNREACHABLE"),
    (client.TimedOut("slow"), Exit.NETWORK, "E.NET.TIMEOUT"),
    (client.BadAnswer("html"), Exit.NETWORK, "E.NET.ANSWER"),
    (client.HubRefused("E.SEQ", "7 was expected", stage="commit", request_id="r"), Exit.REFUSED, "E.SEQ"),
    (client.Rewound("behind", label=b"L" * 32, seq=3), Exit.BAD_EVIDENCE, "E.DIVERGED.REWOUND"),
    (client.ForeignKey("who?"), Exit.BAD_EVIDENCE, "E.DIVERGED.FOREIGN_KEY"),
    (core.MalformedError("no"), Exit.BAD_EVIDENCE, "E.FORMAT"),
    (core.SignatureError("no"), Exit.BAD_EVIDENCE, "E.VERIFY"),
    (core.OpenError(), Exit.LOCAL, "E.LOCAL.OPEN"),
    (core.LimitError("body", 2, 1), Exit.LOCAL, "E.SIZE"),
    (core.InvalidKeyError("short"), Exit.LOCAL, "E.LOCAL.KEY"),
    (core.Refused(core.Refusal.CAP_TTL), Exit.REFUSED, "E.TIME"),
    (storage.LockedError("hub", "pid 7"), Exit.LOCAL, "E.LOCKED"),
    (storage.NoSpaceError("full"), Exit.LOCAL, "E.STORAGE"),
    (storage.CorruptError("log", 1, "flipped"), Exit.BAD_EVIDENCE, "E.VERIFY"),
    (ConnectionRefusedError(111, "Connection refused"), Exit.NETWORK, "E.NET.UNREACHABLE"),
    (TimeoutError("slow"), Exit.NETWORK, "E.NET.TIMEOUT"),
    (socket.gaierror(-2, "Name or service not known"), Exit.NETWORK, "E.NET.UNREACHABLE"),
    (ssl.SSLCertVerificationError(1, "self-signed"), Exit.NETWORK, "E.NET.CERTIFICATE"),
    (ssl.SSLError(1, "wrong version number"), Exit.NETWORK, "E.NET.UNREACHABLE"),
    (client.CertificateUnverified("self-signed certificate"), Exit.NETWORK, "E.NET.CERTIFICATE"),
    (PermissionError(13, "Permission denied", "key"), Exit.LOCAL, "E.LOCAL"),
    (ModuleNotFoundError("No module named 'aioquic'"), Exit.LOCAL, "E.EXTRA"),
    (ValueError("oops"), Exit.LOCAL, "E.BUG"),
]


@pytest.mark.parametrize(("error", "exit_code", "code"), CASES, ids=[type(error).__name__ for error, _, _ in CASES])
def test_each_error_has_its_exit_code_its_code_and_three_sentences(error, exit_code, code):
    fail = failure_of(error)
    assert (fail.exit_code, fail.code) == (exit_code, code)
    assert fail.what
    assert fail.cause
    assert fail.hint


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_package_is_told_with_the_extra_that_brings_it(module):
    fail = failure_of(ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part"))
    assert fail.code == "E.EXTRA"
    assert f"the extra {EXTRAS[module]!r}" in fail.cause
    assert f"'.[{EXTRAS[module]}]'" in fail.hint


DISTRIBUTIONS = {"jwt": "pyjwt", "nats": "nats-py", "opentelemetry": "opentelemetry-proto"}  # named otherwise


def test_every_extra_of_the_table_brings_its_package():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extras = declared["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        packages = [re.split(r"[^\w-]", line, maxsplit=1)[0] for line in extras[extra]]
        assert DISTRIBUTIONS.get(module, module).replace("_", "-") in packages, (module, extra)


def test_a_module_of_no_extra_is_told_as_it_is():
    fail = failure_of(ModuleNotFoundError("No module named 'veen.gone'", name="veen.gone"))
    assert (fail.code, fail.cause) == ("E.EXTRA", "No module named 'veen.gone'")


def all_errors(kind=core.VeenError):
    for sub in kind.__subclasses__():
        yield sub
        yield from all_errors(sub)


@every(sorted(set(all_errors()), key=str))
def test_exit_code_one_is_for_bad_evidence_and_nothing_else(kind):
    bad = issubclass(kind, core.VerifyError | core.FormatError) and not issubclass(kind, client.LocalError)
    # No evidence of others: a token that may not be given, a policy that is not met, a directory that can be repaired.
    bad = bad and kind.code not in ("ID.DELEGATION", "E.EVIDENCE.QUORUM", "E.STORAGE.ROTATIONS")
    assert (catalogue()[kind.code].exit_status == Exit.BAD_EVIDENCE) == bad


def test_a_refusal_tells_stage_and_request():
    fail = failure_of(client.HubRefused("E.SEQ", "7 was expected", stage="commit", request_id="r-9"))
    assert (fail.stage, fail.request_id) == ("commit", "r-9")
    assert fail.what == "the hub refused: E.SEQ (stage commit)"
    assert fail.cause == "7 was expected"
    assert "veen resync STREAM" in fail.hint
    by_detail = client.HubRefused("E.AUTH", "too old", stage="auth", detail_enum="CLIENT_LIFETIME")
    assert "veen id rotate" in failure_of(by_detail).hint
    assert failure_of(client.HubRefused("E.NEW", "?")).hint


def test_a_file_is_named_when_it_cannot_be_used(tmp_path):
    with pytest.raises(OSError, match="directory") as caught:
        tmp_path.read_bytes()
    assert str(tmp_path) in failure_of(caught.value).cause


def test_told_says_which_undertaking_failed_and_leaves_failures_alone():
    with pytest.raises(Fail) as caught, failing_as("the hub cannot start"):
        raise storage.NoSpaceError("full")
    assert caught.value.what == "the hub cannot start"
    with pytest.raises(Fail) as again, failing_as("something else"):
        raise caught.value
    assert again.value.what == "the hub cannot start"


def test_secrets_are_in_no_failure():
    fail = failure_of(client.WrongPassphrase())
    assert "passphrase" in fail.cause
    assert pickle.loads(pickle.dumps(client.WrongPassphrase())).code == fail.code  # noqa: S301 - our own bytes
