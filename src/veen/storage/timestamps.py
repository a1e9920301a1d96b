"""Anchors at a timestamp authority (RFC 3161): a signed statement of a third party that a root existed at a time.

The token is over SHA-256 of the root, so that `openssl ts -verify` checks it without this program:

    openssl ts -verify -data root.bin -in anchor.tsr -CAfile roots.pem -untrusted tsa.pem

An anchor_ref is the whole answer of the authority (TimeStampResp, DER). It is verified before it is taken, and again at
any time without the authority: the certificates are all that is needed. Needs the package of the extra `anchor`.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import urlsplit

from veen.storage.anchors import MAX_REF_BYTES, AnchorError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MAX_ANSWER: Final = 64 * 1024
_SECONDS: Final = 10.0
_TIME_STAMPING: Final = "1.3.6.1.5.5.7.3.8"
_EXTENDED_KEY_USAGE: Final = "2.5.29.37"

Post = Callable[[str, bytes], bytes]


class TimestampTrust:
    """The certificates that a verifier trusts: self-signed ones are roots, the others lead to them.

    A certificate that may only sign timestamps is that of the authority, for tokens without it.
    """

    def __init__(self, roots: "list[Certificate]", others: "list[Certificate]") -> None:
        self.roots, self.others = roots, others

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a PEM file; raise AnchorError if it has no root."""
        from cryptography.x509 import load_pem_x509_certificates

        try:
            certificates = load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as exc:
            raise AnchorError(f"{path}: no certificates in PEM: {_reason(exc)}") from exc
        roots = [certificate for certificate in certificates if certificate.issuer == certificate.subject]
        if not roots:
            raise AnchorError(f"{path}: no self-signed certificate: the root of the timestamp authority is needed")
        return cls(roots, [other for other in certificates if other not in roots])

    def read_time(self, data: bytes, anchor_ref: bytes, nonce: int | None = None) -> datetime:
        """Return the time in a token over `data`; raise AnchorError if the token is invalid."""
        library = _library()
        try:
            response = library.decode_timestamp_response(anchor_ref)
        except ValueError as exc:
            raise AnchorError("the response of the timestamp authority is not valid") from exc
        builder = library.VerifierBuilder(nonce=nonce, roots=list(self.roots))
        for certificate in self.others:
            builder = builder.add_intermediate_certificate(certificate)
        stamper = next((certificate for certificate in self.others if _may_stamp(certificate)), None)
        if stamper is not None:
            builder = builder.tsa_certificate(stamper)
        try:
            builder.build().verify_message(response, data)
            time: datetime = response.tst_info.gen_time
        except (library.VerificationError, ValueError) as exc:
            raise AnchorError(f"the timestamp is not valid: {_reason(exc)}") from exc
        return time


class TimestampAuthority:
    """A timestamp authority behind a URL. Thread-safe; calls block."""

    name: ClassVar[str] = "rfc3161"

    def __init__(self, url: str, trust: TimestampTrust, post: Post | None = None) -> None:
        _library()  # say at once if it is not installed
        if urlsplit(url).scheme not in ("http", "https"):
            raise AnchorError(f"{url[:80]!r} is not a URL of a timestamp authority")
        self._url, self._trust, self._post = url, trust, post or post_timestamp_query

    def publish(self, root: bytes, epoch: int, ts: int, nonce: bytes) -> bytes:
        """Return the verified token. `epoch` and `ts` are the hub's; the valid time is the authority's."""
        library = _library()
        request = library.TimestampRequestBuilder(
            data=root,
            hash_algorithm=library.HashAlgorithm.SHA256,
            cert_req=not any(map(_may_stamp, self._trust.others)),
        ).build()
        answer = self._post(self._url, request.as_bytes())
        self._trust.read_time(root, answer, request.nonce)
        if len(answer) > MAX_REF_BYTES:
            raise AnchorError(
                f"the token has {len(answer)} bytes, more than {MAX_REF_BYTES}: add the authority's own certificate to"
                " the trusted ones, then it need not be in the token"
            )
        return answer

    def verify(self, root: bytes, anchor_ref: bytes) -> bool:
        """Verify without the authority."""
        try:
            self._trust.read_time(root, anchor_ref)
        except AnchorError:
            return False
        return True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def post_timestamp_query(url: str, query: bytes) -> bytes:
    """Post a query and return the response; raise AnchorError if there is none.

    It uses no proxy, follows no redirect, reads at most 64 KiB and waits at most 10 s.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise AnchorError(f"{url[:80]!r} is not a URL of a timestamp authority")
    headers = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}
    request = urllib.request.Request(url, query, headers)  # noqa: S310 - its scheme was checked above
    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect(), tls)
    try:
        with opener.open(request, timeout=_SECONDS) as reply:
            data: bytes = reply.read(_MAX_ANSWER + 1)
    except (OSError, ValueError, urllib.error.URLError) as exc:
        raise AnchorError(f"the timestamp authority does not respond: {_reason(exc)}") from exc
    if len(data) > _MAX_ANSWER:
        raise AnchorError("the response of the timestamp authority exceeds 64 KiB")
    return data


def _may_stamp(certificate: "Certificate") -> bool:
    for extension in certificate.extensions:
        if extension.oid.dotted_string == _EXTENDED_KEY_USAGE:
            usages: Any = extension.value
            return any(usage.dotted_string == _TIME_STAMPING for usage in usages)
    return False


def _library() -> Any:
    try:
        import rfc3161_client
    except ModuleNotFoundError as exc:
        raise AnchorError("timestamps need the package rfc3161-client: pip install 'veen[anchor]'") from exc
    return rfc3161_client


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
