"""tools/veen_verify.py and veen_verify_vectors.py, the second opinion: what they accept, what they catch, and that they
are programs of their own."""

import ast
import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import cbor2
import pytest

import veen_verify
import veen_verify_vectors
from tests.damage import flipped
from tests.evidence_builders import NEW, OLD, STRANGER, World, alterations, body_bounds, resealed
from tests.examples import spread
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Parts

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tools" / "veen_verify.py"
VECTOR_PROGRAM = ROOT / "tools" / "veen_verify_vectors.py"
VECTOR_FILE = ROOT / "tests" / "vectors" / "veen-v0.0.1.json"
VECTORS = json.loads(VECTOR_FILE.read_text("utf-8"))
KEYS = {name: key["public"] for name, key in VECTORS["keys"].items()}
ENTRIES = VECTORS["scenarios"]["A"]["steps"]
PROOFS = VECTORS["scenarios"]["A"]["proofs"]
CHECKPOINTS = {row["name"]: row for name in "AC" for row in VECTORS["scenarios"][name]["checkpoints"]}
OBJECTS = {row["name"]: row for row in VECTORS["objects"]}
REFUSED = (veen_verify.Failed, ValueError, LookupError, TypeError, AttributeError)  # what main calls FAILED


def verify(*args, program=PROGRAM):
    """(exit status, output) of the program in a process of its own, away from our packages."""
    done = subprocess.run(
        [sys.executable, "-I", str(program), *map(str, args)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def call(capsys, *args):
    """The same inside this process, where starting costs nothing."""
    status = veen_verify.main([str(arg) for arg in args])
    return status, capsys.readouterr().out


def receipt_of(seq):
    return bytes.fromhex(ENTRIES[seq - 1]["expect"]["receipt"])


def proof_of(seq, size):
    [row] = [row for row in PROOFS["inclusion"] if (row["stream_seq"], row["tree_size"]) == (seq, size)]
    return bytes.fromhex(row["cbor"])


@pytest.fixture
def place(tmp_path):
    """Writes files into one directory and gives their paths."""

    def write(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def commands(place):
    """Each command with good evidence: which file it is about, its bytes, and the rest of the command line."""
    receipt, msg, checkpoint = (
        receipt_of(4),
        bytes.fromhex(ENTRIES[3]["msg"]),
        bytes.fromhex(CHECKPOINTS["upto_7"]["cbor"]),
    )
    witnessed = bytes.fromhex(CHECKPOINTS["overlap_and_an_outside_witness"]["cbor"])
    evidence = bytes.fromhex(VECTORS["equivocation"][0]["cbor"])
    receipt_file, checkpoint_file = place("receipt.cbor", receipt), place("checkpoint.cbor", checkpoint)
    msg_file, last = place("msg.cbor", msg), Receipt.from_bytes(receipt_of(7))
    witnesses = ("--witness", KEYS["hub"], KEYS["hub_next"], KEYS["witness"])
    return {
        "receipt": (receipt, ["--hub-pk", KEYS["hub"]]),
        "receipt with msg": (receipt, ["--hub-pk", KEYS["hub"], "--msg", msg_file]),
        "proof under a receipt": (proof_of(4, 4), ["--receipt", receipt_file]),
        "proof under a checkpoint": (proof_of(2, 7), ["--checkpoint", checkpoint_file, "--seq", 2]),
        "proof under a root": (
            proof_of(7, 7),
            ["--root", last.mmr_root.hex(), "--size", 7, "--leaf", last.leaf_hash.hex()],
        ),
        "checkpoint": (checkpoint, ["--hub-pk", KEYS["hub"]]),
        "checkpoint with witnesses": (witnessed, ["--hub-pk", KEYS["hub_next"], *witnesses]),
        "equivocation": (evidence, []),
        "msg": (msg, []),
    }


NAMES = [
    "receipt",
    "receipt with msg",
    "proof under a receipt",
    "proof under a checkpoint",
    "proof under a root",
    "checkpoint",
    "checkpoint with witnesses",
    "equivocation",
    "msg",
]


# It is its own program


def test_it_imports_nothing_of_veen():
    """An opinion is a second one only if it does not ask the first"""
    assert imports_of(PROGRAM) == {"cbor2", "nacl"}
    for path in sorted(PROGRAM.parent.glob("veen_verify_*.py")):
        assert imports_of(path) <= {"cbor2", "nacl", "veen_verify", "veen_verify_vectors"}, path


def imports_of(program):
    """Return the modules that a program imports, without those of the standard library."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(program.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Name):
            assert node.id not in ("__import__", "exec", "eval", "importlib")
    return imported - set(sys.stdlib_module_names)


def test_each_program_can_be_read_in_one_sitting():
    programs = [PROGRAM, *PROGRAM.parent.glob("veen_verify_*.py")]
    assert {path.name: size for path in programs if (size := len(path.read_text("utf-8").splitlines())) > 500} == {}


def test_it_runs_where_veen_is_not_installed(tmp_path):
    """As a process: after the vectors are checked, no module of veen was loaded"""
    script = f"""
import runpy, sys
sys.argv = ["veen_verify_vectors.py", {str(VECTOR_FILE)!r}]
sys.modules["veen"] = None  # any import of it fails
try:
    runpy.run_path({str(VECTOR_PROGRAM)!r}, run_name="__main__")
except SystemExit as exc:
    sys.exit(exc.code)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: ")


# What it says


@pytest.mark.req("TS0-01", "TS0-06", "MMR-06", "GEN-09")
def test_it_agrees_with_every_vector():
    """TS0.4: two implementations, one file, all bytes equal"""
    status, said = verify(VECTOR_FILE, program=VECTOR_PROGRAM)
    assert (status, said.count("\n")) == (0, 1)
    assert said.startswith(f"OK: {len(VECTORS['objects'])} objects, 4 scenarios")


@pytest.mark.parametrize("name", NAMES)
def test_good_evidence_is_ok_in_all_three_forms(commands, place, capsys, name):
    """CBOR, hex text, JSON (D-62)"""
    data, rest = commands[name]
    command = name.split()[0]
    kinds = {"receipt": "RECEIPT", "proof": "mmr_proof", "checkpoint": "CHECKPOINT", "msg": "MSG"}
    tree = veen_verify.to_json(cbor2.loads(data), kinds.get(command, command))
    forms = [data, f"{data.hex().upper()}\n".encode(), json.dumps(tree, indent=2).encode()]
    said = set()
    for number, form in enumerate(forms):
        status, line = call(capsys, command, place(f"form-{number}", form), *rest)
        assert (status, line.count("\n")) == (0, 1), line
        assert line.startswith("OK: ")
        said.add(line)
    assert len(said) == 1


@pytest.mark.req("RCPT-02", "CKPT-03", "MSG-04", "PROOF-09", "RCPT-07")
@pytest.mark.parametrize("name", NAMES)
def test_no_byte_can_be_flipped_unseen(commands, place, capsys, name):
    """Every byte of the evidence in turn"""
    data, rest = commands[name]
    unseen = []
    for pos in range(len(data)):
        changed = data[:pos] + bytes([data[pos] ^ (1 << pos % 8)]) + data[pos + 1 :]
        status, line = call(capsys, name.split()[0], place("flipped", changed), *rest)
        if status != 1 or not line.startswith("FAILED: "):
            unseen.append(pos)
    assert unseen == []


@pytest.mark.parametrize("name", spread(NAMES, 2))
def test_the_process_says_failed_with_status_1(commands, place, name):
    data, rest = commands[name]
    command = name.split()[0]
    assert verify(command, place("good", data), *rest)[0] == 0
    status, said = verify(command, place("flipped", flipped(data)), *rest)
    assert status == 1
    assert said.startswith("FAILED: ")
    assert said.count("\n") == 1


def test_the_right_object_in_the_wrong_place_is_failed(commands, place, capsys):
    """Each is good evidence, of something else"""
    receipt, checkpoint = (
        place("receipt", receipt_of(4)),
        place("checkpoint", bytes.fromhex(CHECKPOINTS["upto_7"]["cbor"])),
    )
    proof, msg = place("proof", proof_of(2, 7)), place("msg", bytes.fromhex(ENTRIES[4]["msg"]))
    leaf = Receipt.from_bytes(receipt_of(3)).leaf_hash.hex()
    for wrong in (
        ["receipt", receipt, "--hub-pk", KEYS["hub_next"]],
        ["receipt", receipt, "--hub-pk", KEYS["hub"], "--msg", msg],
        ["receipt", checkpoint, "--hub-pk", KEYS["hub"]],
        ["checkpoint", receipt, "--hub-pk", KEYS["hub"]],
        ["checkpoint", checkpoint, "--hub-pk", KEYS["stranger"]],
        ["checkpoint", checkpoint, "--hub-pk", KEYS["hub"], "--witness", KEYS["witness"]],
        ["proof", proof, "--checkpoint", checkpoint, "--seq", 3],
        ["proof", proof, "--checkpoint", checkpoint],
        ["proof", proof, "--checkpoint", checkpoint, "--seq", 2, "--leaf", leaf],
        ["proof", proof, "--checkpoint", checkpoint, "--seq", 0],
        ["proof", proof, "--receipt", receipt, "--seq", 2],
        ["msg", receipt],
        ["equivocation", receipt],
    ):
        status, line = call(capsys, *wrong)
        assert (status, line[:8]) == (1, "FAILED: "), wrong


@pytest.mark.parametrize("row", VECTORS["equivocation"], ids=lambda row: row["name"])
def test_equivocation_reports_are_judged_as_listed(place, capsys, row):
    status, line = call(capsys, "equivocation", place("report", bytes.fromhex(row["cbor"])))
    assert status == (0 if row["verdict"] == "proven" else 1)
    assert line.startswith("OK: equivocation by the holder of " if status == 0 else "FAILED: ")


def test_wrong_usage_and_unreadable_files_have_status_2(tmp_path, place):
    receipt = place("receipt", receipt_of(1))
    for wrong in (
        [],
        ["receipts", receipt],
        ["receipt", receipt],
        ["receipt", receipt, "--hub-pk", "not hex"],
        ["proof", receipt],
        ["proof", receipt, "--root", "00" * 32],
        ["msg", tmp_path / "missing"],
        ["msg", tmp_path],
        ["vectors", VECTOR_FILE],
    ):
        status, _ = verify(*wrong)
        assert status == 2, wrong
    for wrong in ([], [tmp_path / "missing"]):
        assert verify(*wrong, program=VECTOR_PROGRAM)[0] == 2, wrong


def test_hostile_content_is_failed_and_never_a_traceback(place, capsys):
    """Nothing that a file may hold is our error"""
    tag_35 = cbor2.dumps(cbor2.CBORTag(35, "(a+)+$"))
    for number, content in enumerate(
        [
            b"",
            b"{",
            b"[" * 100_000,
            b"{}",
            b"[]",
            b"abc",
            b"\xff" * 64,
            b"\x81" * 100_000,
            b"\x9b" + b"\xff" * 8,
            bytes.fromhex("d81c81d81d00"),  # an array that contains itself
            b"\xa1\xf5\x01",
            tag_35,
            json.dumps({"ver": 1, "leaf_hash": 5}).encode(),
        ]
    ):
        path = place(f"hostile-{number}", content)
        assert (veen_verify_vectors.main([str(path)]), capsys.readouterr().out[:8]) == (1, "FAILED: "), number
        for command in ("msg", "equivocation"):
            status, line = call(capsys, command, path)
            assert (status, line[:8]) == (1, "FAILED: "), (number, command)
        assert call(capsys, "proof", path, "--root", "00" * 32, "--size", 1)[0] == 1


def test_a_text_cannot_pretend_to_be_structure():
    """The shapes are matched against an outline; a text that looks like one must stay a text"""
    shape = veen_verify.SHAPES["profile"]
    tree = cbor2.loads(bytes.fromhex(OBJECTS["profile_ref"]["cbor"]))
    assert veen_verify.matches(shape, veen_verify.outline(tree))
    del tree[2]
    tree[1] = "xchacha20poly1305 2:=hkdf-sha256"
    assert not veen_verify.matches(shape, veen_verify.outline(tree), sizes=False)


# It checks for real


def leaves(node, path=()):
    """The paths to all values in the file that are claims: neither words for people, nor input that may vary.

    Inputs are the configuration of a hub, when something came that changed nothing, bytes that are wrong anyway.
    """
    if path[:1] == ("other_objects",) or path[-1:] in (("note",), ("title",), ("name",)):
        return
    if (path[:1] == ("malformed",) and len(path) == 3 and path[-1] != "error") or path[2:4] == ("proofs", "refused"):
        return
    if isinstance(node, (dict, list)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if not (key in ("hub_ts", "stream") and _changes_nothing(node)) and not (
                path[2:] == ("hub",) and _is_free(key)
            ):
                yield from leaves(value, (*path, key))
    else:
        yield path


def _changes_nothing(row):
    """A refusal, or a token once more; the time of its first authorisation stands in its record."""
    return "refused" in row.get("expect", []) or "refused" in row.get("verdict", "") or row.get("op") == "authorize"


def _is_free(key):
    return key in ("streams", "hub_keys") or key.startswith("max_")


def altered(value):
    """The same type, another value; in hex another digit."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value:
        middle = len(value) // 2
        return value[:middle] + ("1" if value[middle] == "0" else "0") + value[middle + 1 :]
    return "00" if value == "" else 0


def unnoticed(paths):
    vectors = copy.deepcopy(VECTORS)
    missed = []
    for path in paths:
        node = vectors
        for key in path[:-1]:
            node = node[key]
        original, node[path[-1]] = node[path[-1]], altered(node[path[-1]])
        try:
            veen_verify_vectors.check_vectors(vectors)
            missed.append(path)
        except REFUSED:
            pass
        node[path[-1]] = original
    veen_verify_vectors.check_vectors(vectors)
    return missed


CLAIMS = list(leaves(VECTORS))


def test_altered_vectors_are_noticed():
    """A sample over the whole file"""
    assert len(CLAIMS) > 2000
    assert unnoticed(random.Random(1).sample(CLAIMS, 20)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_any_altered_vector_is_noticed(part):
    """All of them, in parts that can run side by side"""
    assert unnoticed(CLAIMS[part::20]) == []


@pytest.mark.parametrize("member", ["keys", "constants", "objects", "scenarios", "equivocation", "malformed"])
def test_a_missing_member_is_failed(place, capsys, member):
    less = {name: value for name, value in VECTORS.items() if name != member}
    status = veen_verify_vectors.main([str(place("less.json", json.dumps(less).encode()))])
    assert (status, capsys.readouterr().out[:8]) == (1, "FAILED: ")


def test_the_process_notices_one_altered_digit(tmp_path):
    text = VECTOR_FILE.read_text("utf-8")
    digest = ENTRIES[2]["signing_digest"]
    assert text.count(digest) >= 1
    changed = tmp_path / "vectors.json"
    changed.write_text(text.replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"), 1), "utf-8")
    status, said = verify(changed, program=VECTOR_PROGRAM)
    assert status == 1
    assert said.startswith("FAILED: ")


def test_it_cuts_ciphertexts_as_the_core_does():
    """Spec §4.2: what follows the parts, by two programs"""
    for step in ENTRIES:
        msg = Msg.from_bytes(bytes.fromhex(step["msg"]))
        assert veen_verify.padding_of(msg.ciphertext) == Parts.split(msg.ciphertext).padding
        assert veen_verify.padding_of(msg.ciphertext[: 40 + 51]) is None


# --- evidence files ---------------------------------------------------------------------------------------------------


WORLD = World()
SMALL = World([b"a", b"b", b"c"])


def evidence_fault(data, key=OLD, hub_id=None):
    """Why the program refuses a file; None if it accepts it."""
    try:
        veen_verify.check_evidence(data, key and key.public, hub_id)
    except REFUSED as exc:
        return str(exc.args[0]) if exc.args else type(exc).__name__
    return None


@pytest.mark.parametrize("contents", ["sealed", "openings", "plaintext"])
def test_evidence_files_are_checked(place, contents):
    path = place("orders.veen-evidence", WORLD.evidence((2, 3), (5, 6), contents=contents, head=7).to_file())
    status, text = verify("evidence", path, "--hub-pk", OLD.public.hex())
    assert (status, text.startswith("OK: evidence of 4 entries")) == (0, True)
    assert verify("evidence", path, "--hub-pk", STRANGER.public.hex())[0] == 1
    status, text = verify("evidence", path)
    assert "key was not given" in text
    hub_id = WORLD.identity.hub_id
    assert verify("evidence", path, "--hub-pk", NEW.public.hex(), "--hub-id", hub_id.hex())[0] == 0
    assert verify("evidence", path, "--hub-pk", NEW.public.hex())[0] == 1


def test_every_altered_evidence_file_is_refused():
    for name, (altered, _) in alterations(WORLD).items():
        if name != "a name without an id":  # no file can be written with it
            assert evidence_fault(altered.to_file()) is not None, name


def test_an_evidence_file_that_is_damaged_or_altered_anywhere_is_refused():
    """Every third byte of the content, with the digest made right: tests/core looks at all of them."""
    data = SMALL.evidence((2, 2), contents="openings", head=3).to_file()
    start, end = body_bounds(data)
    for pos in range(start, end, 3):
        altered = data[:pos] + bytes([data[pos] ^ 1 << pos % 8]) + data[pos + 1 :]
        assert evidence_fault(resealed(altered)) is not None, pos
    for pos in (*range(start), *range(end, len(data)), start + 7):
        assert evidence_fault(data[:pos] + bytes([data[pos] ^ 1]) + data[pos + 1 :]) is not None, pos
    for size in (0, 1, 14, 15, 16, 60, len(data) // 2, len(data) - 1):
        assert evidence_fault(data[:size]) is not None, size
    assert evidence_fault(data + b"\0") is not None
    assert evidence_fault(data) is None
