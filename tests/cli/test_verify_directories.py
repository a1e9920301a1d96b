"""`veen verify` on directories: what is in it decides what is checked."""

import pytest
from tests.cli.homes import OTHER, Cli
from tests.damage import flipped

from veen.cli.shared.output import Exit


@pytest.mark.req("CLNT-11")
def test_an_exported_identity_is_verified_without_its_passphrase(talk, tmp_path):
    stream = talk.new_stream("verify/export")
    talk.say(stream, "a", "b")
    talk.run("id", "export", tmp_path / "set")
    result = talk.json("verify", tmp_path / "set")
    assert (result["kind"], result["name"], result["labels"], result["hub_sigs_checked"]) == (
        "exported identity", "alice", 1, True,
    )  # fmt: skip
    assert talk.run("verify", tmp_path / "set", "-o", "human").stdout.startswith("keys not pinned")
    for path in sorted((tmp_path / "set").iterdir()):
        data = path.read_bytes()
        if not data:
            continue
        path.write_bytes(flipped(data))
        error = talk.json("verify", tmp_path / "set", code=Exit.BAD_EVIDENCE)
        assert error["code"] == "E.VERIFY"
        path.write_bytes(data)
    assert talk.json("verify", tmp_path / "set")["ok"]


@pytest.mark.req("CLNT-11")
def test_streams_go_along_verified_and_sealed(talk, tmp_path):
    """D-72: receipts, messages, checkpoints and attachments, by label and number; readable where it arrives."""
    first, second = talk.new_stream("export/one"), talk.new_stream("export/two")
    (tmp_path / "file.bin").write_bytes(b"attached and sealed" * 10)
    talk.say(first, "a", "b")
    talk.json("attachment", "put", second, tmp_path / "file.bin", "--body", "with a file")
    talk.json("attachment", "put", second, tmp_path / "file.bin")
    exported = talk.json("id", "export", tmp_path / "set", "--stream", first, "--stream", second)
    assert exported["checkpoints"] == 2
    result = talk.json("verify", tmp_path / "set")
    assert (result["entries"], result["checkpoints"], result["attachments"], result["hub_sigs_checked"]) == (
        4,
        2,
        2,
        True,
    )
    stored = b"".join(path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file())
    assert b"attached and sealed" not in stored
    assert b"with a file" not in stored
    elsewhere = Cli(tmp_path / "elsewhere")
    assert elsewhere.json("id", "import", tmp_path / "set")["entries"] == 4
    elsewhere.run("context", "add", "dev", "--hub", talk.hub.url, "--pin", talk.hub.about["hub_pk"], "--use")
    assert [entry["body"] for entry in elsewhere.json("stream", first)["entries"]] == ["a", "b"]
    assert elsewhere.json("send", first, "c")["client_seq"] == 3
    payloads = tmp_path / "set" / "payloads.cborseq"
    payloads.write_bytes(flipped(payloads.read_bytes()))
    assert "payloads" in talk.json("verify", tmp_path / "set", code=Exit.BAD_EVIDENCE)["cause"]


def test_an_export_is_verified_by_given_keys_and_says_which(talk, tmp_path):
    stream = talk.new_stream("pinning/export")
    talk.say(stream, "a", "b")
    talk.run("id", "export", tmp_path / "set", "--stream", stream)
    hub_pk = talk.hub.about["hub_pk"]
    report = talk.json("verify", tmp_path / "set")
    assert (report["keys"], report["hub_pks"], report["hub_pks_origin"]) == (
        "not pinned",
        [hub_pk],
        "the export itself",
    )
    shown = talk.run("verify", tmp_path / "set").stdout
    assert shown.startswith("keys not pinned")
    assert f"hub key {hub_pk} (from the export itself)" in shown
    report = talk.json("verify", tmp_path / "set", "--hub-pk", hub_pk)
    assert (report["keys"], report["hub_pks"], report["hub_pks_origin"]) == ("pinned", [hub_pk], "--hub-pk")
    assert talk.json("verify", tmp_path / "set", "--hub-pk", OTHER, "--hub-pk", hub_pk)["ok"]
    report = talk.json("verify", tmp_path / "set", "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)
    assert report["code"] == "E.VERIFY"
    assert "none of the hub keys" in report["cause"]


def test_a_data_directory_is_verified_as_verify_data_does(talk, tmp_path):
    stream = talk.new_stream("verify/data")
    talk.say(stream, "a", "b")
    talk.run("hub", "clone", talk.hub.data_dir, tmp_path / "copy")
    assert talk.json("verify", tmp_path / "copy") == talk.json("hub", "verify-data", tmp_path / "copy")
    files = [path for name in ("log", "journal") for path in (tmp_path / "copy" / name).iterdir()]
    log = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(bytes(data))
    failed = talk.run("verify", tmp_path / "copy", code=Exit.BAD_EVIDENCE)
    assert log.name in failed.stderr


def test_any_other_directory_and_options_that_do_not_fit_are_usage_errors(talk, tmp_path):
    (tmp_path / "empty").mkdir()
    assert talk.json("verify", tmp_path / "empty", code=Exit.USAGE)["code"] == "E.USAGE"
    talk.run("verify", tmp_path / "empty", "--hub-pk", "0" * 64, code=Exit.USAGE)
