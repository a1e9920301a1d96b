"""tools/vesn_verify.py: its own program, of the same opinion, and nothing escapes either of them."""

import ast
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.products.vesn import log_builders as w

import vesn_verify
from veen.products.vesn.files import export_set
from veen.products.vesn.portability import MemorySource, verify_set

PROGRAM = Path(__file__).parents[3] / "tools" / "vesn_verify.py"
FILES = w.small_set()
ARGUMENTS = ("--hub-pk", w.HUB.public.hex(), "--witness", w.WITNESS.public.hex())


def second(files):
    try:
        vesn_verify.verify(files, [w.HUB.public], [w.WITNESS.public], [60, 0])
    except vesn_verify.Failed:
        return False
    return True


def first(files):
    return verify_set(MemorySource(files), w.TRUST).verdict == "verified"


def flipped(name, bit):
    data = bytearray(FILES[name])
    data[bit // 8] ^= 1 << bit % 8
    return {**FILES, name: bytes(data)}


def unseen(name, bits):
    return [(bit, check.__name__) for bit in bits for check in (first, second) if check(flipped(name, bit))]


def test_it_imports_nothing_of_veen_and_has_less_than_200_lines():
    text = PROGRAM.read_text("utf-8")
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"cbor2", "nacl"}
    assert len(text.splitlines()) < 200


def test_both_accept_the_small_set():
    assert first(FILES)
    assert second(FILES)


@pytest.mark.req("VESN-12", "VESN-15")
@pytest.mark.parametrize("name", FILES)
def test_a_sample_of_single_bit_changes_is_found_by_both(name):
    assert unseen(name, range(Random(name).randrange(61), 8 * len(FILES[name]), 61)) == []


@pytest.mark.slow
@pytest.mark.req("VESN-12", "VESN-15")
@pytest.mark.parametrize("name", FILES)
def test_every_single_bit_change_of_every_file_is_found_by_both(name):
    assert unseen(name, range(8 * len(FILES[name]))) == []


@pytest.mark.parametrize("name", FILES)
def test_both_find_what_is_cut_off_or_added(name):
    data = FILES[name]
    again = data if name in ("checkpoints.cborl", "cap_tokens.cborl") else b""  # these two may repeat a record
    for changed in (data[:-1], data + b"\x00", data[1:], data * 2 if not again else data + again[:-1]):
        files = {**FILES, name: changed}
        assert (first(files), second(files)) == (False, False)


def test_the_program_says_ok_or_failed(tmp_path):
    export_set(FILES, tmp_path / "good")
    export_set({**FILES, "sync_state": FILES["sync_state"][:-1] + b"\x09"}, tmp_path / "bad")
    for name, status, said in (("good", 0, "OK: 3 entries\n"), ("bad", 1, "FAILED: sync_state\n")):
        done = subprocess.run(
            [sys.executable, "-I", str(PROGRAM), str(tmp_path / name), *ARGUMENTS],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (status, said, "")


def test_hostile_files_are_failed_and_never_a_traceback(capsys, tmp_path):
    for number, content in enumerate(
        [
            b"\xff",
            b"\x81" * 100_000,
            b"\x9b" + b"\xff" * 8,
            bytes.fromhex("d81c81d81d00"),
            b"\xa1\x01\x02",
            b"\xf9\x7e\x00",
        ]
    ):
        directory = tmp_path / str(number)
        export_set({**FILES, "receipts.cborl": content}, directory)
        assert vesn_verify.main([str(directory), *ARGUMENTS]) == 1
        assert capsys.readouterr().out.startswith("FAILED: ")
