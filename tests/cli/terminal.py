"""A program in a terminal of its own, as a person sees it."""

import os
import pty
import select
import subprocess
import sys
import time


def in_terminal(*args, answers=(), env=None, cwd=None, program=None, timeout=60):
    """Exit code and everything on the screen of `veen …`; `answers` are (prompt, what the person types)."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        program or [sys.executable, "-m", "veen", *map(str, args)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    os.close(slave)
    waiting, screen, read_bytes = list(answers), b"", 0
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    data = os.read(master, 65_536)
                except OSError:  # the other side is closed
                    break
                if not data:
                    break
                screen += data
            if waiting and waiting[0][0].encode() in screen[read_bytes:]:
                read_bytes = len(screen)
                os.write(master, waiting.pop(0)[1].encode() + b"\n")
        return process.wait(timeout=10), screen.decode(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
