"""QUIC, as hub and client use it (D-113): ALPN `veen/1`, one bidirectional stream for each call, TLS 1.3 always.

The client sends a request frame and ends its half of the stream; the hub answers with a response frame and ends the
other half. Sessions are not resumed, so no request is sent before the handshake is complete (0-RTT), where it could be
replayed. Datagrams are not used.
"""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

ALPN: Final = "veen/1"
IDLE_SEC: Final = 30.0
CANCELLED: Final = 1  # the application's code of a stream that its client gave up, or that the hub will not read
_WINDOW_BYTES: Final = 1 << 20  # of one stream, and four times as much of a connection, before more is granted


def server_configuration(cert: Path, key: Path) -> "QuicConfiguration":
    """Return a server's configuration; raise OSError or ValueError for unusable files.

    ImportError without the extra `quic`.
    """
    from aioquic.quic.configuration import QuicConfiguration

    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        idle_timeout=IDLE_SEC,
        max_stream_data=_WINDOW_BYTES,
        max_data=4 * _WINDOW_BYTES,
    )
    configuration.load_cert_chain(cert, key)
    return configuration


def client_configuration(
    host: str, ca_file: Path | None, client_cert: Path | None, client_key: Path | None
) -> "QuicConfiguration":
    """Return the configuration of a client. Without `ca_file` the authorities of this machine are trusted."""
    from aioquic.quic.configuration import QuicConfiguration

    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        idle_timeout=IDLE_SEC,
        server_name=host,
        verify_mode=ssl.CERT_REQUIRED,
        max_stream_data=_WINDOW_BYTES,
        max_data=4 * _WINDOW_BYTES,
    )
    if ca_file is not None:
        configuration.load_verify_locations(cadata=ca_file.read_bytes())
    else:
        system = ssl.get_default_verify_paths()
        configuration.load_verify_locations(cafile=system.cafile, capath=system.capath)
    if client_cert is not None:
        configuration.load_cert_chain(client_cert, client_key)
    return configuration
