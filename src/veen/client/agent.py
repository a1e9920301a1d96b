"""The agent: opened keystores stay open for a while, for the commands and programs of the same user.

A process listens on a Unix socket in the user's home, `state/agent/socket` (0600, in a directory 0700). It holds
keys that were stretched from passphrases, never a passphrase, each under the salt of its keystore: a new passphrase
has a new salt, so an old key opens nothing. A key is forgotten after its time, by `lock`, and when the process ends.
Both sides ask the kernel for the user on the other side, and accept only the same user. One request is one line of
JSON, and so is the answer.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from veen.client.errors import LocalError
from veen.client.home import Home, PrivateFs

MAX_SECONDS: Final = 7 * 86_400
_SOCKET, _LOCK = "socket", "lock"
_MAX_LINE: Final = 4096
_MAX_KEYS: Final = 64
_ANSWER_SECONDS: Final = 5.0
_PR_SET_DUMPABLE: Final = 4
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # a machine that sleeps does not stop it


class AgentRuns(LocalError):
    """An agent of this home runs already."""

    hint = "See what it holds: `veen agent status`; end it: `veen agent stop`."


@dataclass(slots=True)
class _HeldKey:
    name: str
    key: bytes
    until: float


class AgentKeys:
    """The keys of an agent, and its answers. Used by one thread; the time is an argument."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self._keys: dict[str, _HeldKey] = {}

    def expire(self, now: float) -> None:
        self._keys = {salt: entry for salt, entry in self._keys.items() if entry.until > now}

    @property
    def is_empty(self) -> bool:
        return not self._keys

    def answer(self, request: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the answer to one request; {"error": …} for an invalid one."""
        self.expire(now)
        match request:
            case {"do": "get", "salt": str(salt)}:
                entry = self._keys.get(salt)
                return {"key": None if entry is None else entry.key.hex()}
            case {"do": "put", "salt": str(salt), "name": str(name), "key": str(key)}:
                return self._add(salt, name, key, now)
            case {"do": "status"}:
                rows = [{"name": entry.name, "seconds_left": int(entry.until - now)} for entry in self._keys.values()]
                return {"pid": os.getpid(), "seconds": self.seconds, "keys": rows}
            case {"do": "lock"}:
                count = len(self._keys)
                self._keys.clear()
                return {"forgotten": count}
            case {"do": "stop"}:
                return {"stopped": True, "pid": os.getpid()}
        return {"error": "no such request"}

    def _add(self, salt: str, name: str, key: str, now: float) -> dict[str, Any]:
        try:
            data = bytes.fromhex(key)
        except ValueError:
            data = b""
        if len(data) != 32 or len(salt) > 128 or len(name) > 128:
            return {"error": "not a key"}
        if salt not in self._keys and len(self._keys) >= _MAX_KEYS:
            return {"error": "too many keys"}
        self._keys[salt] = _HeldKey(name, data, now + self.seconds)
        return {"stored": True}


# --- the side of commands and programs -----------------------------------------------------------------------


def agent_dir(home: Home) -> Path:
    return home.state / "agent"


def ask(home: Home, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer of the agent; None if none runs. An agent that does not answer in time counts as none."""
    try:
        with _directory(agent_dir(home)) as fd, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(_address(fd, agent_dir(home)))
            if _peer_uid(connection) != os.geteuid():
                raise LocalError(f"{agent_dir(home)}: another user answers in place of the agent")
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_line(connection))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def find_key(home: Home, salt: bytes) -> bytes | None:
    """Return the key of the keystore with this salt, if the agent holds it."""
    answer = ask(home, {"do": "get", "salt": salt.hex()})
    key = None if answer is None else answer.get("key")
    return bytes.fromhex(key) if isinstance(key, str) and len(key) == 64 else None


def store_key(home: Home, name: str, salt: bytes, key: bytes) -> bool:
    """Send a key to the agent; return False if none runs or it has no room."""
    answer = ask(home, {"do": "put", "name": name, "salt": salt.hex(), "key": key.hex()})
    return answer is not None and answer.get("stored") is True


# --- the process -----------------------------------------------------------------------------------------------


def serve(home: Home, seconds: int, ready: Callable[[], None]) -> None:
    """Run the agent until `stop`, or until no key was held for the time that one is kept. Raise AgentRuns if there
    is one."""
    directory = agent_dir(home)
    PrivateFs(directory).make_dir("")
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(_directory(directory))
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=fd)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise AgentRuns("an agent runs already") from exc
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=fd)  # left by an agent that was killed: its lock is free
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        before = os.umask(0o177)
        try:
            listener.bind(_address(fd, directory))
        finally:
            os.umask(before)
        stack.callback(_unlink, fd)
        listener.listen(16)
        _hide_memory()
        ready()
        _answer_all(listener, AgentKeys(seconds))


def _answer_all(listener: socket.socket, keys: AgentKeys) -> None:
    idle_since = time.clock_gettime(_CLOCK)
    listener.settimeout(1.0)
    while True:
        now = time.clock_gettime(_CLOCK)
        keys.expire(now)
        if not keys.is_empty:
            idle_since = now
        elif now - idle_since > keys.seconds:
            return
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(_ANSWER_SECONDS)
            if _peer_uid(connection) != os.geteuid():
                continue
            try:
                request = json.loads(_line(connection))
                answer = keys.answer(request if isinstance(request, dict) else {}, time.clock_gettime(_CLOCK))
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError, RecursionError):
                continue
            if answer.get("stopped"):
                return


def _hide_memory() -> None:
    """Forbid core dumps and attaching by other processes of the user: both would show the keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _unlink(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_SOCKET, dir_fd=fd)


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """Open the agent's directory and yield its descriptor. Raise LocalError if others may enter it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LocalError(f"{path}: other users may enter the directory of the agent")
        yield fd
    finally:
        os.close(fd)


def _address(fd: int, directory: Path) -> str:
    """Return the address of the socket, by the descriptor if possible: addresses are short, paths of homes may be
    long."""
    here = Path(f"/proc/self/fd/{fd}")
    return str((here if here.exists() else directory) / _SOCKET)


def _peer_uid(connection: socket.socket) -> int:
    if not hasattr(socket, "SO_PEERCRED"):
        raise LocalError("this system does not tell who is at the other end of a socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _line(connection: socket.socket) -> bytes:
    """Read one line. Raise ValueError if it is too long or cut off."""
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(_MAX_LINE)
        data += part
        if not part or len(data) > _MAX_LINE:
            raise ValueError("not a line")
    return data
