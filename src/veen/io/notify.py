"""Status messages to systemd: one datagram to the socket that it names (`Type=notify`, sd_notify(3))."""

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sender of status messages. Sends nothing if no service manager listens."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        pid = environ.get("WATCHDOG_PID", "")
        watched = pid in ("", str(os.getpid()))
        usec = environ.get("WATCHDOG_USEC", "")
        # Twice in the time that systemd allows, as it recommends.
        self.watchdog_seconds = int(usec) / 2_000_000 if watched and usec.isdecimal() else 0.0

    def send_ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def send_reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def send_stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def send_alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send("\n".join(lines).encode())
        except OSError:  # the service manager is a convenience; the hub goes on without it
            return
