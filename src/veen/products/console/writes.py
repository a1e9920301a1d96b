"""Writes of a console: send a message, anchor a root, revoke a token. Each form takes effect once.

A form has a number (`BrowserAdmission.form_token`). The first time it is sent, the write is done and its outcome is
stored; the same form again, by a reload or a second click, gets the same outcome. A failed write may be retried with
the same form.

Verification of an uploaded file: the same checks as `veen verify`, with the keys pinned by this console.

The form is read here: one boundary, a few parts, all of limited size.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request

from veen.cli.shared.failures import failure_of
from veen.cli.shared.files import decode_hex
from veen.client.evidence_file import TrustedKeys, verify_evidence
from veen.client.identity.keyring import StreamKeys
from veen.client.send.writing import Sent
from veen.client.verify.pin import HubPin
from veen.core.checks import Given, MissingInput, check
from veen.core.errors import VeenError
from veen.core.evidence_file import is_evidence
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.policies import Revocation
from veen.core.objects.recognise import recognise
from veen.overlays.framework.plain import plain
from veen.products.console.errors import ConsoleError, CrossSiteRequest, FormInvalid, UploadInvalid

MAX_UPLOAD_BYTES: Final = 16 * 1024 * 1024
_MAX_PARTS: Final = 8
_MAX_HEAD_BYTES: Final = 4096
_BOUNDARY: Final = re.compile(r'multipart/form-data;\s*boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?', re.IGNORECASE)
_NAME: Final = re.compile(rb'^content-disposition:[^\r\n]*?;\s*name="([^"\r\n]*)"', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Contents of the form: the file, another object that its check needs, and a key to verify it with."""

    data: bytes
    related: tuple[bytes, ...] = ()
    hub_pk: bytes | None = None  # None: the pinned keys


async def read_body(request: Request, most: int, refusal: type[ConsoleError]) -> bytes:
    """Return the body of a form. Raise `refusal` as soon as it is longer than `most` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise refusal(f"the form has more than {most} bytes")
    return bytes(body)


async def read_form(request: Request) -> Upload:
    """Read the form. Raise UploadInvalid if it is too large or malformed."""
    match = _BOUNDARY.fullmatch(request.headers.get("content-type", ""))
    if match is None:
        raise UploadInvalid("the request is not a form with a file")
    fields = _parts(await read_body(request, MAX_UPLOAD_BYTES, UploadInvalid), match[1].encode())
    (data,) = fields.get(b"file", [b""])
    if not data:
        raise UploadInvalid("the form has no file, or an empty one")
    (key,) = fields.get(b"hub_pk", [b""])
    related = tuple(content for content in fields.get(b"related", ()) if content)
    return Upload(data=data, related=related, hub_pk=_key(key))


def _parts(body: bytes, boundary: bytes) -> dict[bytes, list[bytes]]:
    """Return the parts by name; only `related` may occur more than once.

    The end of the last one must exist: a truncated form is refused.
    """
    line = b"\r\n--" + boundary
    first, *rest = (b"\r\n" + body).split(line, _MAX_PARTS + 2)
    if first or not rest or not rest[-1].startswith(b"--") or len(rest) > _MAX_PARTS + 1:
        raise UploadInvalid("the parts of the form cannot be told apart")
    fields: dict[bytes, list[bytes]] = {}
    for part in rest[:-1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head[:_MAX_HEAD_BYTES].lstrip(b"\r\n"))
        if not separator or name is None or (name[1] in fields and name[1] != b"related"):
            raise UploadInvalid("a part of the form has no name, or the name of another part")
        fields.setdefault(name[1], []).append(content)
    return fields


def _key(text: bytes) -> bytes | None:
    words = text.strip().removeprefix(b"ed25519:")
    if not words:
        return None
    try:
        key = bytes.fromhex(words.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UploadInvalid("the key of the hub has 64 hex digits, perhaps with ed25519: before them")
    return key


def judge(upload: Upload, pin: HubPin) -> dict[str, Any]:
    """Return the verdict: `verified`, `failed`, or `undecided` if an input of the check is missing."""
    keys = "the key in the form" if upload.hub_pk is not None else "the keys that this console has pinned"
    facts: dict[str, Any] = {"bytes": len(upload.data), "sha256": sha256(upload.data).hexdigest(), "judged_by": keys}
    try:
        if is_evidence(upload.data):
            return facts | {"kind": "evidence file"} | _evidence(upload, pin)
        obj = recognise(decode_hex(upload.data)).obj
        facts["kind"] = obj.KIND
        related = tuple(recognise(decode_hex(data)).obj for data in upload.related)
        hub_pks = tuple(key.hub_pk for key in pin.keys) if upload.hub_pk is None else (upload.hub_pk,)
        verdict = facts | {"verdict": "verified", "checks": check(obj, Given(hub_pks=hub_pks, related=related))}
        return verdict | ({"fields": compare_fields(obj)} if isinstance(obj, Equivocation) else {})
    except MissingInput as exc:
        hint = "add the other object in the second field of the form"
        return facts | {"verdict": "undecided", "code": "E.USAGE", "cause": str(exc), "hint": hint}
    except VeenError as exc:
        fail = failure_of(exc)
        return {"kind": "unknown"} | facts | {
            "verdict": "failed", "code": fail.code, "cause": fail.cause, "hint": fail.hint
        }  # fmt: skip


def _evidence(upload: Upload, pin: HubPin) -> dict[str, Any]:
    if upload.hub_pk is not None:
        trusted = TrustedKeys(hub_pks=(upload.hub_pk,))
    elif pin.root_pk is not None:
        trusted = TrustedKeys(root_pk=pin.root_pk)
    else:
        trusted = TrustedKeys(hub_pks=(pin.keys[0].hub_pk,), hub_id=pin.hub_id)  # it leads to the later ones
    report = verify_evidence(upload.data, trusted)
    return {
        "verdict": "verified",
        "stream": report.stream_name,
        "entry_count": len(report.entries),
        "checks": list(report.checks),
        "proves": list(report.proves()),
        "does_not_prove": list(report.limits()),
    }


def compare_fields(evidence: Equivocation) -> list[dict[str, Any]]:
    """Return the fields of both statements by name."""
    first, second = dict(evidence.first.present_fields()), dict(evidence.second.present_fields())
    return [
        {
            "name": name,
            "first": plain(first.get(name)),
            "second": plain(second.get(name)),
            "differs": first.get(name) != second.get(name),
        }
        for name in dict.fromkeys((*first, *second))
    ]


MAX_FORM_BYTES: Final = 1024 * 1024
_MAX_FIELDS: Final = 16
_REMEMBERED: Final = 10_000  # outcomes


class ConsoleWriter(Protocol):
    """The writer of a console: the identity of the context, as in a command."""

    async def send(self, keys: StreamKeys, body: bytes) -> Sent:
        """Send a message and return its verified receipt. An equal message without a receipt is the same one."""

    async def anchor(self, keys: StreamKeys) -> ControlRecord:
        """Have the hub anchor the newest root of a stream; return the verified record."""

    async def revoke(self, revocations: Sequence[Revocation]) -> tuple[ControlRecord, ...]:
        """Have the hub refuse tokens; return the verified records of new revocations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome:
    """A completed write: the page that shows it, and the message there."""

    path: str
    what: str
    verified: str  # the facts verified by the console


class WriteLog:
    """Outcomes by the number of the form. Used on the loop of the console only."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._tasks: OrderedDict[int, asyncio.Task[WriteOutcome]] = OrderedDict()
        self._contents: dict[int, bytes] = {}  # digests of the same forms
        self._floor = 0  # forms up to this number were dropped and are refused
        self._writing = asyncio.Lock()  # one write at a time: an identity has one user

    async def once(self, serial: int, content: bytes, work: Callable[[], Awaitable[WriteOutcome]]) -> WriteOutcome:
        """Return the outcome of `work`, which runs for the first request with this number.

        Raise FormInvalid if the form was sent before with other content: from a page that the browser went back to.
        """
        task = self._tasks.get(serial)
        if task is not None and self._contents.get(serial) != content:
            raise FormInvalid("this form was sent before with another content; nothing was done")
        if task is None:
            if serial <= self._floor:
                raise CrossSiteRequest("the form is too old: many others were sent since")
            task = self._tasks[serial] = asyncio.create_task(self._alone(work))
            self._contents[serial] = content
        try:
            # A browser that disconnects does not stop a write in progress.
            outcome = await asyncio.shield(task)
        except BaseException:
            if task.done() and self._tasks.get(serial) is task:
                self._forget(serial)  # it failed: the same form may try again
            raise
        while len(self._tasks) > self._most:
            oldest = next(iter(self._tasks))
            if not self._tasks[oldest].done():
                break
            self._forget(oldest)
            self._floor = max(self._floor, oldest)
        return outcome

    def outcome(self, serial: int) -> WriteOutcome | None:
        """Return the outcome of a completed form, or None."""
        task = self._tasks.get(serial)
        return task.result() if task is not None and task.done() and not task.exception() else None

    def _forget(self, serial: int) -> None:
        del self._tasks[serial], self._contents[serial]

    async def _alone(self, work: Callable[[], Awaitable[WriteOutcome]]) -> WriteOutcome:
        async with self._writing:
            return await work()


async def read_fields(request: Request, *, most: int = MAX_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form without files. Raise FormInvalid if it is too large, or repeats a field."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise FormInvalid("the request is not a form")
    body = await read_body(request, most, FormInvalid)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict",
            max_num_fields=_MAX_FIELDS,
        )  # fmt: skip
    except ValueError as exc:
        raise FormInvalid("the fields of the form cannot be read") from exc
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise FormInvalid("the form has a field twice")
    return fields
