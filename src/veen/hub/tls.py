"""TLS for the hub: 1.2 or newer, AEAD suites only, no compression, certificates that can be replaced (D-67)."""

import ipaddress
import ssl
from pathlib import Path
from typing import Any, Final

from veen.core.errors import VeenError

__all__ = ["PlainHttpError", "Tls", "TlsError", "check_plain", "names_of"]

# TLS 1.3 has no other suites. For 1.2: forward secrecy and AEAD, nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsError(VeenError):
    """Certificate, key or client CA cannot be used."""

    hint = "Check that certificate and key are PEM files that belong together, and that the hub may read them."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class PlainHttpError(VeenError):
    """Plain HTTP beyond loopback was not asked for explicitly."""

    hint = "Give a certificate and a key, or force plain HTTP where something else encrypts (D-67)."

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host}: not loopback, and TLS is off"


def check_plain(host: str) -> None:
    """Raise PlainHttpError unless only this machine can connect to `host`."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise PlainHttpError(host)


class Tls:
    """One context for the life of the server; `reload` gives it new files for new connections."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None, *, demand_client: bool = True) -> None:
        self._cert, self._key, self._client_ca, self._demand_client = cert, key, client_ca, demand_client
        self.context = self._build()

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED if self._demand_client else ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as exc:
            raise TlsError(f"certificate {self._cert}, key {self._key}: {exc}") from exc
        return context

    def reload(self) -> None:
        """Read the files again. If they do not fit together, nothing changes and TlsError says why."""
        self._build()
        self.context.load_cert_chain(self._cert, self._key)
        if self._client_ca is not None:
            self.context.load_verify_locations(self._client_ca)


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The names in a client certificate that was verified: common name, then alternative names."""
    if not certificate:
        return ()
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*common, *(value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")))
