"""Conversion of exceptions into an exit status and three sentences, in one place.

No input ends in a traceback and no two commands differ. Our errors have a code, and the row of that code in the
catalogue (`veen/core/errors.toml`) has the rest. Errors of Python and of libraries get their code here. Those classes
are named, not imported: an exception can only come from a module that is loaded, and the command line must not load a
transport to report its failure. A test resolves every name.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from veen.cli.shared.output import Exit, Fail
from veen.core.catalogue import ErrorRow, catalogue
from veen.core.errors import VeenError

T = TypeVar("T")

_DISK: Final = "Check the path, its permissions and the free space."
_CERTIFICATE: Final = "Give the certificate of the authority that the hub uses: --ca-file FILE."

# Code and, where the row's first fix is not the one that helps, hint. The nearest class in the inheritance decides.
FOREIGN: Final[dict[str, tuple[str, str]]] = {
    "builtins.ConnectionError": ("E.NET.UNREACHABLE", ""),
    "builtins.TimeoutError": ("E.NET.TIMEOUT", ""),
    "socket.gaierror": ("E.NET.UNREACHABLE", ""),
    "ssl.SSLError": ("E.NET.UNREACHABLE", _CERTIFICATE),
    "ssl.SSLCertVerificationError": ("E.NET.CERTIFICATE", ""),
    "http.client.HTTPException": ("E.NET.ANSWER", ""),
    "builtins.ModuleNotFoundError": ("E.EXTRA", ""),
    "builtins.OSError": ("E.LOCAL", _DISK),
    "builtins.Exception": ("E.BUG", ""),
}

# The smallest extra that brings a package, by the name that is imported; a test compares it with pyproject.toml.
EXTRAS: Final = {
    "aioquic": "quic",
    "cryptography": "recorder",
    "h11": "recorder",
    "jinja2": "console",
    "jwt": "oidc",
    "keyring": "keyring",
    "kubernetes_validate": "kube",
    "nats": "nats",
    "numpy": "spark",
    "opentelemetry": "recorder",
    "pandas": "notebook",
    "pyarrow": "notebook",
    "pyspark": "spark",
    "rfc3161_client": "anchor",
    "starlette": "query",
    "uvicorn": "query",
    "uvloop": "fast",
    "zfec": "bridge",
}

# Somebody else's refusal: its code and text are theirs.
REFUSALS: Final = {
    "veen.client.errors.HubRefused": "the hub refused",
    "veen.core.errors.Refused": "the message was refused",
    "veen.overlays.rpc.ends.RpcFailed": "the server refused the call",
}


def failure_of(exc: Exception, what: str | None = None) -> Fail:
    """Convert `exc` to a Fail; `what` names the operation that it ended."""
    fail = _failure_of(exc, what)
    fail.waiting = getattr(exc, "waiting", None) if fail.waiting is None else fail.waiting
    return fail


def _failure_of(exc: Exception, what: str | None) -> Fail:
    if isinstance(exc, Fail):
        return exc
    if os.environ.get("VEEN_DEBUG"):
        import traceback

        traceback.print_exception(exc, file=sys.stderr)
    if not isinstance(exc, VeenError):
        code, hint = _nearest(exc, FOREIGN) or ("E.BUG", "")
        row = catalogue()[code]
        if isinstance(exc, ModuleNotFoundError) and (extra := EXTRAS.get((exc.name or "").partition(".")[0])):
            from veen.core.catalogue import install_hint

            return Fail(code, what or row.means, f"{exc.name} is part of the extra {extra!r}", install_hint(extra))
        cause = f"{type(exc).__name__}: {_cause(exc)}" if code == "E.BUG" else _cause(exc)
        return Fail(code, what or row.means, cause, hint or row.hint, exit_code=Exit(row.exit_status))
    if (parts := getattr(exc, "cause", None)) is not None and hasattr(exc, "what"):  # SettingsError has all three
        return Fail(exc.code, what or exc.what, parts, exc.hint)
    stage = _stage(exc)
    cause = str(exc) or type(exc).__name__
    if refused := _nearest(exc, REFUSALS):
        headline = f"{refused}: {exc.code}" + (f" (stage {stage})" if stage else "")
        cause = getattr(exc, "message", cause)
    else:
        headline = _headline(exc.row)
    return Fail(
        exc.code,
        what or headline,
        cause,
        getattr(exc, "remedy", None) or exc.hint,
        exit_code=Exit(catalogue()[type(exc).code].exit_status),
        stage=stage,
        request_id=getattr(exc, "request_id", None),
    )


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Name the operation that an error inside ended."""
    try:
        yield
    except Exception as exc:
        if isinstance(exc, Fail) or type(exc).__module__.startswith("click."):
            raise
        raise failure_of(exc, what) from exc


def _nearest(exc: Exception, table: Mapping[str, T]) -> T | None:
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(exc).__mro__)
    return next((table[name] for name in names if name in table), None)


def _headline(row: ErrorRow) -> str:
    """Return a general sentence about an error; the cause has the particulars.

    Where the cause is the row's own message, its meaning would only repeat it: then the family's is the headline.
    """
    family = ".".join(row.code.split(".")[:2])
    return catalogue()[family].means if row.message else row.means


def _cause(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror)
    return str(exc) or type(exc).__name__


def _stage(exc: Exception) -> str | None:
    stage = getattr(getattr(exc, "refusal", exc), "stage", None)
    stage = getattr(stage, "value", stage)
    return stage if isinstance(stage, str) else None
