"""TLS for the hub: 1.2 or newer, AEAD suites only, no compression, certificates that can be replaced (D-67)."""

import re
import ssl
from pathlib import Path
from typing import Any, Final

from veen.core.errors import VeenError
from veen.io.addresses import is_loopback
from veen.io.local import mode_of

# TLS 1.3 has no other suites. For 1.2: forward secrecy and AEAD, nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_CERTIFICATE: Final = re.compile(rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----[A-Za-z0-9+/=\s]+-----END \1-----")


class TlsError(VeenError):
    """A certificate, key or client CA that cannot be used."""

    hint = "Check that certificate and key are PEM files that belong together, and that the hub may read them."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class ExposedKeyError(TlsError):
    """A private key that other users can access."""

    hint = "Run `chmod 600` on the file; replace key and certificate if it was exposed."

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(f"key {path}: other users can access this private key (mode {mode:04o})")
        self.args = (path, mode)  # args mirror __init__, so that the error survives pickling


class PlainHttpError(VeenError):
    """Plain HTTP beyond loopback that was not requested explicitly."""

    hint = "Configure a certificate and a key, or allow plain HTTP if another layer encrypts (D-67)."

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host}: not loopback, and TLS is off"


def check_plain(host: str) -> None:
    """Raise PlainHttpError unless only this machine can connect to `host`."""
    if not is_loopback(host):
        raise PlainHttpError(host)


class Tls:
    """TLS context that was made from files, and the contents of these files when it was made.

    Trusted certificates can be added to a context but not removed, and its session tickets stay valid for clients that
    it verified. A reload therefore makes a new `Tls` instead of changing the old one: the new one accepts no session
    ticket of the old one.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None, *, demand_client: bool = True) -> None:
        self._cert, self._key, self._client_ca, self._demand_client = cert, key, client_ca, demand_client
        self._trusted = None if client_ca is None else _certificates(client_ca)  # None: anybody may connect
        self.context = self._build()

    def trusts_all_of(self, other: "Tls") -> bool:
        """Return True if this context accepts every client that `other` accepted."""
        if self._trusted is None or other._trusted is None:
            return self._trusted == other._trusted
        return self._trusted >= other._trusted

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(["http/1.1"])
        if (mode := mode_of(self._key)) is not None:
            raise ExposedKeyError(self._key, mode)
        try:
            context.load_cert_chain(self._cert, self._key)
            if self._trusted is not None:
                context.load_verify_locations(cadata=b"\n".join(sorted(self._trusted)).decode())
                context.verify_mode = ssl.CERT_REQUIRED if self._demand_client else ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as exc:
            files = f"certificate {self._cert}, key {self._key}"
            files += "" if self._client_ca is None else f", client CA {self._client_ca}"
            raise TlsError(f"{files}: {exc}") from exc
        return context


def _certificates(path: Path) -> frozenset[bytes]:
    """Return the PEM certificates of a file."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise TlsError(f"client CA {path}: {exc.strerror}") from exc
    blocks = frozenset(b"".join(match[0].split(b"\r")) for match in _CERTIFICATE.finditer(data))
    if not blocks:
        raise TlsError(f"client CA {path}: the file contains no certificate in PEM")
    return blocks


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified client certificate: common name, then alternative names."""
    if not certificate:
        return ()
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*common, *(value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")))


def expiry_of(certificate: dict[str, Any] | None) -> float:
    """Return the end of a client certificate, in seconds of the wall clock; infinity without a certificate."""
    return ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else float("inf")
