"""Another implementation reads what we sign: notes, cosignatures, policies and proofs of C2SP, by transparency-dev's Go
modules (tests/foreign/tlog). Built where Go and its registry answer; skipped with the reason elsewhere."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.hub import builders as w
from tests.hub.test_outer import OUTER, VKEY, begun, outer_key, policy_file, published, reading, witness_of
from tests.hub.test_runtime import run, running, submit

from veen.client.verify.outer import OuterReader
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey, verify_signatures
from veen.core.tlog.policy import WitnessPolicy

SOURCE = Path(__file__).parents[2] / "foreign" / "tlog"

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def tlog(tmp_path_factory):
    """The program, built from the module versions and hashes of go.sum."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed: no foreign verifier can be built")
    directory = tmp_path_factory.mktemp("tlog")
    shutil.copytree(SOURCE, directory / "source")
    proxy = subprocess.run([go, "env", "GOPROXY"], capture_output=True, text=True, check=True).stdout.strip()
    env = {**os.environ, "GOPROXY": proxy.split(",")[0], "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    built = subprocess.run(
        [go, "build", "-o", directory / "tlog", "."],
        cwd=directory / "source",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"the foreign verifier cannot be built here: {built.stderr.strip().splitlines()[-1:]}")
    return directory / "tlog"


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """What a hub published with the cosignature of our witness: the files that the foreign program reads."""
    root = tmp_path_factory.mktemp("hub")
    files = root / "files"
    files.mkdir()

    begun(root)

    async def scenario(url):
        policy = policy_file(root, url)
        async with running(root, **OUTER, outer__policy=policy) as hub:
            await submit(hub, 3, first=2)
            await published(hub)
            await submit(hub, 2, first=5)
            note = await published(hub)
            async with reading(hub) as session:
                listed = await OuterReader(session).proof(w.LABEL, 2)
        assert len(note.signatures) == 2
        assert listed is not None
        return hub.outer.vkey, note, *listed

    with witness_of(root / "witness", outer_key(root)) as (witness, _):
        vkey, note, proof, leaf = run(scenario(witness.url))
    (files / "note").write_bytes(note.to_bytes())
    (files / "vkey").write_text(f"{vkey}\n")
    (files / "policy").write_bytes((root / "witnesses.policy").read_bytes())
    (files / "proof").write_bytes(proof.to_bytes())
    (files / "leaf").write_bytes(leaf.to_bytes())
    return files


def verified(tlog, files):
    done = subprocess.run([tlog, "verify", files], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_a_foreign_verifier_reads_our_cosigned_note_policy_and_proof(tlog, signed):
    result = verified(tlog, signed)
    head = LogCheckpoint.parse(Note.from_bytes((signed / "note").read_bytes()).text)
    assert isinstance(result, dict), result
    assert (result["origin"], result["size"], result["root"]) == (head.origin, head.size, head.root.hex())
    assert sorted(result["signatures"]) == sorted((head.origin, VKEY.name))


@pytest.mark.parametrize("name", ["note", "vkey", "policy", "proof", "leaf"])
def test_it_refuses_what_was_changed(tlog, signed, tmp_path, name):
    """So the test above could fail."""
    files = tmp_path / "files"
    shutil.copytree(signed, files)
    data = (files / name).read_text() if name != "leaf" else None
    if data is None:
        raw = bytearray((files / name).read_bytes())
        raw[-1] ^= 1
        (files / name).write_bytes(bytes(raw))
    elif name == "proof":
        (files / name).write_text(data.replace("index ", "index 1"))
    elif name == "policy":
        other = VerifierKey(VKEY.name, VKEY.key_type, bytes(range(32)))
        (files / name).write_text(data.replace(str(VKEY), str(other)))
    elif name == "vkey":
        (files / name).write_text(str(VerifierKey(data.partition("+")[0], 1, bytes(range(32)))))
    else:
        (files / name).write_text(data.replace("\n", " \n", 1))
    assert isinstance(verified(tlog, files), str)


def test_we_read_what_a_foreign_witness_cosigns(tlog, signed):
    done = subprocess.run(
        [tlog, "cosign", "foreign.example"], input=(signed / "note").read_bytes(), capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    note, key = Note.from_bytes(answer["note"].encode()), VerifierKey.parse(answer["vkey"])
    assert verify_signatures(note, (key,))[key] > 1_700_000_000
    log = (signed / "vkey").read_text().strip()
    policy = WitnessPolicy.parse(
        f"log {log}\nwitness ours {VKEY}\nwitness theirs {key}\ngroup both all ours theirs\nquorum both\n"
    )
    assert set(policy.check(note).cosigned) == {"ours", "theirs"}
