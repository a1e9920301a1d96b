"""The agent: who gets a key, for how long, and what it does with nonsense."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import spread
from tests.waiting import until

from veen.client import agent
from veen.client.agent import AgentKeys, AgentRuns, agent_dir, ask, find_key, serve, store_key
from veen.client.errors import LocalError
from veen.client.home import Home
from veen.client.identity.keystore import create_identity
from veen.client.identity.unlocking import open_without_asking

KEY, SALT = b"k" * 32, b"s" * 16


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path / ("a path that is longer than the address of a socket may be " * 2).replace(" ", "-"))


@contextlib.contextmanager
def running(home, seconds=60):
    """An agent in a process of its own: it hides its memory, which must not happen to this one."""
    program = (
        "import sys; from pathlib import Path; from veen.client.agent import serve; from veen.client.home import Home\n"
        "serve(Home.at(Path(sys.argv[1])), int(sys.argv[2]), lambda: print('ready', flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(home.data), str(seconds)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.terminate()


def test_a_key_is_kept_for_those_who_ask_and_forgotten_on_demand(home):
    assert ask(home, {"do": "status"}) is None
    assert not store_key(home, "alice", SALT, KEY)
    with running(home) as process:
        assert find_key(home, SALT) is None
        assert store_key(home, "alice", SALT, KEY)
        assert find_key(home, SALT) == KEY
        assert find_key(home, b"t" * 16) is None
        status = ask(home, {"do": "status"})
        assert status is not None
        assert (status["pid"], [row["name"] for row in status["keys"]]) == (process.pid, ["alice"])
        assert KEY.hex() not in json.dumps(status)
        assert ask(home, {"do": "lock"}) == {"forgotten": 1}
        assert find_key(home, SALT) is None
        assert ask(home, {"do": "stop"}) == {"stopped": True, "pid": process.pid}
        process.wait(timeout=60)
    assert ask(home, {"do": "status"}) is None


def test_its_socket_is_for_the_owner_alone(home):
    with running(home):
        assert agent_dir(home).stat().st_mode & 0o777 == 0o700
        assert (agent_dir(home) / "socket").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_may_enter_is_not_used(home):
    with running(home):
        agent_dir(home).chmod(0o755)
        with pytest.raises(LocalError, match="other users may enter"):
            store_key(home, "alice", SALT, KEY)


def test_another_user_gets_no_answer(home, monkeypatch):
    with running(home):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # as a client of another user would see it
        with pytest.raises(LocalError):
            ask(home, {"do": "status"})


def test_the_agent_asks_the_kernel_who_connects(tmp_path, monkeypatch):
    """Without the check a socket that was handed to another user would be answered."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert agent._peer_uid(ours) == os.geteuid()
    home = Home.at(tmp_path)
    monkeypatch.setattr(agent, "_hide_memory", lambda: None)
    real = agent._peer_uid
    asked = []

    def stranger(connection):
        asked.append(real(connection))
        return os.geteuid() + 1

    ready = threading.Event()
    thread = threading.Thread(target=serve, args=(home, 1, ready.set), daemon=True)
    thread.start()
    assert ready.wait(60)
    store_key(home, "alice", SALT, KEY)
    monkeypatch.setattr(agent, "_peer_uid", stranger)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(agent_dir(home) / "socket"))
        with contextlib.suppress(BrokenPipeError):  # closed before it was sent
            connection.sendall(b'{"do": "get", "salt": "' + SALT.hex().encode() + b'"}\n')
        with contextlib.suppress(ConnectionResetError):  # closed before it was read
            assert connection.recv(100) == b""
    assert asked == [os.geteuid()]
    thread.join(60)  # it ends by itself when it has held no key for as long as it keeps one
    assert not thread.is_alive()


def test_there_is_one_agent_and_one_that_was_killed_is_replaced(home):
    with running(home) as process:
        with pytest.raises(AgentRuns):
            serve(home, 60, lambda: None)
        process.kill()
        process.wait(timeout=60)
    assert (agent_dir(home) / "socket").exists()
    with running(home):
        assert ask(home, {"do": "status"}) is not None


def test_its_memory_is_hidden_from_other_processes(home):
    with running(home) as process:
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert line.split()[4:6] == ["0", "0"]


@pytest.mark.parametrize(
    "line",
    spread(
        [
            b"\n",
            b"nonsense\n",
            b"[]\n",
            b"{}\n",
            b'{"do": "fly"}\n',
            b"x" * 10_000 + b"\n",
            b'{"do": "get"',
            b"[" * 4000 + b"\n",
        ],
        3,
    ),
)
def test_nonsense_does_not_end_it(home, line):
    with running(home):
        with socket.socket(socket.AF_UNIX) as connection:
            fd = os.open(agent_dir(home), os.O_RDONLY)
            try:
                connection.connect(f"/proc/self/fd/{fd}/socket")
            finally:
                os.close(fd)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
        until(lambda: ask(home, {"do": "status"}) is not None)


# --- what it holds, as a function of requests and time -------------------------------------------------------------


def put(keys, now, **fields):
    return keys.answer({"do": "put", "salt": "aa", "name": "alice", "key": KEY.hex(), **fields}, now)


def test_a_key_is_gone_when_its_time_is_over():
    keys = AgentKeys(60)
    assert put(keys, 0.0) == {"stored": True}
    assert keys.answer({"do": "get", "salt": "aa"}, 59.9) == {"key": KEY.hex()}
    assert keys.answer({"do": "get", "salt": "aa"}, 60.0) == {"key": None}
    assert keys.is_empty


def test_reading_a_key_does_not_prolong_it_and_putting_it_again_does():
    keys = AgentKeys(60)
    put(keys, 0.0)
    keys.answer({"do": "get", "salt": "aa"}, 50.0)
    put(keys, 50.0, salt="bb")
    assert keys.answer({"do": "get", "salt": "aa"}, 61.0) == {"key": None}
    assert keys.answer({"do": "get", "salt": "bb"}, 61.0) == {"key": KEY.hex()}


@pytest.mark.parametrize("fields", [{"key": "zz"}, {"key": "aa"}, {"salt": "s" * 200}, {"name": "n" * 200}])
def test_what_is_no_key_is_not_kept(fields):
    keys = AgentKeys(60)
    assert "error" in put(keys, 0.0, **fields)
    assert keys.is_empty


def test_it_holds_a_bounded_number_of_keys():
    keys = AgentKeys(60)
    answers = [put(keys, 0.0, salt=str(number)) for number in range(70)]
    assert answers.count({"stored": True}) == 64
    assert answers[-1] == {"error": "too many keys"}


@given(st.dictionaries(st.sampled_from(["do", "salt", "name", "key"]), st.none() | st.text() | st.integers()))
def test_any_request_has_an_answer(request):
    assert isinstance(AgentKeys(60).answer(request, 0.0), dict)


# --- keystores -------------------------------------------------------------------------------------------------


def test_a_keystore_opens_by_the_agent_until_its_passphrase_changes(home):
    keystore = create_identity(home, "alice", "four words nobody guesses", now=1)
    assert open_without_asking(home, "alice") is None
    with running(home):
        store_key(home, "alice", keystore.salt, keystore.unlock_key)
        opened = open_without_asking(home, "alice")
        assert opened is not None
        assert opened.identity.client_id == keystore.identity.client_id
        opened.change_passphrase("four other words to guess")
        assert open_without_asking(home, "alice") is None


def test_a_key_that_does_not_fit_opens_nothing(home):
    keystore = create_identity(home, "alice", "four words nobody guesses", now=1)
    with running(home):
        store_key(home, "alice", keystore.salt, KEY)
        assert open_without_asking(home, "alice") is None
