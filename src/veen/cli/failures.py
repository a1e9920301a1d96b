"""From any exception to an exit code and three sentences: the one place that decides, so that no input ends in a
traceback and no two commands disagree.

Classes are known by their names, not by import: an exception can only come from a module that is loaded, and the
command line must not load the hub or a transport in order to say that it failed. A test resolves every name.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from veen.cli.output import Exit, Fail

__all__ = ["FAMILIES", "Family", "failure_of", "told"]


@dataclass(frozen=True, slots=True)
class Family:
    """How exceptions of one class and its subclasses are told; `code` and `hint` yield to those of the exception."""

    exit_code: Exit
    code: str
    what: str
    hint: str = ""


_DISK: Final = "check the path, its permissions and the free space"
_REACH: Final = "check the URL and that the hub runs: `veen hub health --hub URL`"

# The nearest class in the inheritance of an exception decides.
FAMILIES: Final[dict[str, Family]] = {
    # the client
    "veen.client.errors.LocalError": Family(Exit.LOCAL, "E.LOCAL", "this cannot be done with what is here"),
    "veen.client.errors.NetworkError": Family(Exit.NETWORK, "E.NET", "the hub did not answer", _REACH),
    "veen.client.errors.HubRefused": Family(Exit.REFUSED, "E.UNAVAILABLE", "the hub refused"),
    "veen.client.errors.Divergence": Family(Exit.BAD_EVIDENCE, "E.DIVERGED", "what the hub shows does not hold"),
    "veen.client.errors.ClientError": Family(Exit.LOCAL, "E.LOCAL", "this cannot be done"),
    # the core
    "veen.core.errors.FormatError": Family(Exit.BAD_EVIDENCE, "E.FORMAT", "these bytes are not what they should be"),
    "veen.core.errors.VerifyError": Family(Exit.BAD_EVIDENCE, "E.VERIFY", "verification FAILED"),
    "veen.core.errors.OpenError": Family(Exit.LOCAL, "E.LOCAL.OPEN", "a message cannot be opened"),
    "veen.core.errors.LimitError": Family(Exit.LOCAL, "E.SIZE", "this is more than the limits allow"),
    "veen.core.errors.InvalidKeyError": Family(Exit.LOCAL, "E.LOCAL.KEY", "this is not a usable key"),
    "veen.core.errors.Refused": Family(Exit.REFUSED, "E.BAD_REQUEST", "the message was refused"),
    "veen.core.errors.VeenError": Family(Exit.LOCAL, "E.LOCAL", "this cannot be done"),
    # overlays
    "veen.overlays.rpccaller.NoAnswer": Family(Exit.NETWORK, "RPC.NO_ANSWER", "nobody answered the call"),
    "veen.overlays.rpccaller.RpcFailed": Family(Exit.REFUSED, "RPC.INTERNAL", "the server refused the call"),
    "veen.overlays.decode.Violation": Family(Exit.POLICY, "OVL.BODY", "this would count for nothing"),
    "veen.overlays.snapshot.SnapshotRefused": Family(Exit.BAD_EVIDENCE, "E.SNAPSHOT", "the snapshot was refused"),
    "veen.overlays.id.delegation.DelegationRefused": Family(
        Exit.POLICY, "ID.DELEGATION", "no token can be given to this key"
    ),
    # storage and the hub
    "veen.storage.errors.LockedError": Family(Exit.LOCAL, "E.LOCKED", "the data directory is in use"),
    "veen.storage.errors.StorageError": Family(Exit.LOCAL, "E.STORAGE", "the data directory cannot be used"),
    "veen.hub.config.ConfigError": Family(Exit.LOCAL, "E.CONFIG", "the configuration cannot be used"),
    # queries
    "veen.pipeline.query.errors.InvalidJson": Family(Exit.USAGE, "E.USAGE", "the query is not JSON"),
    "veen.pipeline.query.errors.InvalidDescriptor": Family(Exit.USAGE, "E.USAGE", "the query cannot be understood"),
    "veen.pipeline.query.errors.UnsupportedVersion": Family(Exit.USAGE, "E.USAGE", "the query is of another version"),
    "veen.pipeline.query.errors.QueryError": Family(Exit.LOCAL, "E.LOCAL", "the query cannot be answered"),
    # Python and what we build on
    "builtins.ConnectionError": Family(Exit.NETWORK, "E.NET.UNREACHABLE", "the hub did not answer", _REACH),
    "builtins.TimeoutError": Family(Exit.NETWORK, "E.NET.TIMEOUT", "the hub did not answer in time", _REACH),
    "socket.gaierror": Family(Exit.NETWORK, "E.NET.UNREACHABLE", "the name of the hub is not known", _REACH),
    "ssl.SSLError": Family(
        Exit.NETWORK, "E.NET.UNREACHABLE", "no trusted connection to the hub", "give --ca-file FILE"
    ),
    "http.client.HTTPException": Family(Exit.NETWORK, "E.NET.ANSWER", "the answer is not HTTP", _REACH),
    "builtins.ModuleNotFoundError": Family(
        Exit.LOCAL, "E.EXTRA", "a part of VEEN is not installed", "pip install 'veen[all]'"
    ),
    "builtins.OSError": Family(Exit.LOCAL, "E.LOCAL", "a file cannot be used", _DISK),
}

_BUG: Final = Family(
    Exit.LOCAL,
    "E.BUG",
    "VEEN failed in a way it should not",
    "set VEEN_DEBUG=1, run it again, and report what it prints",
)


def failure_of(exc: Exception, what: str | None = None) -> Fail:
    """What to tell about `exc`; `what` says which undertaking it ended."""
    if isinstance(exc, Fail):
        return exc
    if os.environ.get("VEEN_DEBUG"):
        import traceback

        traceback.print_exception(exc, file=sys.stderr)
    family = _family_of(exc)
    cause, hint = _cause(exc), _hint(exc) or family.hint
    if family is _BUG:
        cause = f"{type(exc).__name__}: {cause}"
    code, stage = _code(exc) or family.code, _stage(exc)
    if family.exit_code is Exit.REFUSED:  # the hub's own words are the cause, and what helps depends on the code
        cause, hint = getattr(exc, "message", cause), _fix(getattr(exc, "detail_enum", None) or code) or hint
    if what is None:
        what = family.what
        if stage is not None:
            what += f": {code} (stage {stage})"
        elif family.exit_code is Exit.REFUSED:
            what += f": {code}"
    return Fail(
        family.exit_code,
        what,
        cause,
        hint or f"veen explain {code}",
        code,
        stage=stage,
        request_id=getattr(exc, "request_id", None),
    )


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Say which undertaking an error ended."""
    try:
        yield
    except Exception as exc:
        if isinstance(exc, Fail) or type(exc).__module__.startswith("click."):
            raise
        raise failure_of(exc, what) from exc


def _family_of(exc: Exception) -> Family:
    for kind in type(exc).__mro__:
        if found := FAMILIES.get(f"{kind.__module__}.{kind.__qualname__}"):
            return found
    return _BUG


def _cause(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror)
    return str(exc) or type(exc).__name__


def _hint(exc: Exception) -> str:
    hint = getattr(exc, "remedy", None) or getattr(exc, "hint", None)  # a remedy knows more than its class
    return hint if isinstance(hint, str) else ""


def _code(exc: Exception) -> str | None:
    """An exception's own code, be it text or a member of one of the enumerations of the protocol."""
    code = getattr(getattr(exc, "refusal", exc), "code", None)
    code = getattr(code, "code", code)
    return code if isinstance(code, str) else None


def _fix(code: str) -> str:
    """The first thing to try about a code of the hub."""
    from veen.cli.explaining import explanation_of

    found = explanation_of(code)
    return found.fixes[0] if found else ""


def _stage(exc: Exception) -> str | None:
    stage = getattr(getattr(exc, "refusal", exc), "stage", None)
    stage = getattr(stage, "value", stage)
    return stage if isinstance(stage, str) else None
