"""Rows of stored results: checked against the digest before they leave the store, page by page (D-190)."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake.query_builders import KEYRING, descriptor, filled

from veen.core import canonical
from veen.core.canonical import InvalidJson
from veen.core.tree.mmr import MmrTree
from veen.core.verdict import Because, Outcome
from veen.lake.query import api
from veen.lake.query.digest import PageProof, ResultDigest, RowsHash, RowsTree, row_leaf
from veen.lake.query.errors import ResultDamaged, ResultForged
from veen.lake.query.store import ResultStore
from veen.lake.query.verdicts import check_result

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "query-rows-v1.json").read_text())


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("log"), 60, noise=False).done()


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "store")


@pytest.fixture
def result(store, log):
    return api.run(log, descriptor(evidence={"mode": "full"}), keys=KEYRING, store=store)


def digest_of(rows):
    rows_hash, tree = RowsHash(), RowsTree()
    for row in rows:
        rows_hash.add(row)
        tree.add(row)
    values = dict.fromkeys(("query_id", "result_id", "evidence_hash", "coverage_hash", "executed_at", "hub_id"), "x")
    value = {**values, "version": 1, "row_count": len(rows), "evidence_policy": {"mode": "none"}}
    value |= {"rows_hash": rows_hash.hexdigest(), "rows_root": tree.root()}
    return ResultDigest.from_bytes(canonical.encode(value))


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.data())
def test_a_page_has_a_proof_and_any_other_row_has_none(rows, data):
    """A page is checked without the rows around it."""
    first = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(first, len(rows)))
    digest, tree = digest_of(rows), MmrTree(map(row_leaf, rows))
    proof = PageProof.from_json(PageProof.of(tree.node_at, first, end, len(rows)).to_json())
    proof.check(digest, first, rows[first:end])
    assert len(proof.before) + len(proof.after) <= 4 * len(rows).bit_length()
    if first < end:
        at = data.draw(st.integers(first, end - 1)) - first
        page = rows[first:end]
        for other in ([*page[:at], page[at] + b"!", *page[at + 1 :]], [*page[:at], *page[at + 1 :]], [*page, b"more"]):
            with pytest.raises(ResultForged):
                proof.check(digest, first, other)
        with pytest.raises(ResultForged):
            proof.check(digest, first + 1, page)


@pytest.mark.parametrize("value", [None, 1, {}, {"before": 1, "after": []}, {"before": ["zz"], "after": []}])
def test_a_proof_of_another_form_is_refused(value):
    with pytest.raises(ResultForged):
        PageProof.from_json(value)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_the_published_vectors_of_page_proofs_hold(case):
    """A leaf is SHA-256("veen/query-row" ‖ 0x00 ‖ row); leaves are joined as those of a label are (spec §5.1)."""
    rows = [row.encode() for row in case["rows"]]
    digest = digest_of(rows)
    assert [sha256(b"veen/query-row\0" + row).hexdigest() for row in rows] == case["leaves"]
    assert (digest.rows_hash, digest.rows_root) == (case["rows_hash"], case["rows_root"])
    tree = MmrTree(map(row_leaf, rows))
    for page in case["pages"]:
        proof = PageProof.of(tree.node_at, page["first"], page["end"], len(rows))
        assert proof.to_json() == page["proof"]
        PageProof.from_json(page["proof"]).check(digest, page["first"], rows[page["first"] : page["end"]])


def place(store, result):
    return store._results / result.digest.result_id


def forge_row(store, result, number=3):
    """Change one row in place, as whoever can write the store does."""
    path = place(store, result) / "rows.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    forged = lines[number].replace(b'"event_type":"', b'"event_type":"X', 1)
    assert forged != lines[number]
    lines[number] = forged
    path.write_bytes(b"".join(lines))
    index, at = b"", 0
    for line in lines:
        index += at.to_bytes(8, "big")
        at += len(line)
    (place(store, result) / "rows.idx").write_bytes(index)


def as_earlier_release(store, result):
    """Take from the stored result what digests of earlier releases did not have."""
    path = place(store, result) / "final.json"
    final = canonical.parse(path.read_bytes())
    del final["digest"]["rows_root"]
    path.write_bytes(canonical.encode(final))
    (place(store, result) / "rows.tree").unlink()


@pytest.mark.parametrize("earlier", [False, True])
def test_forged_rows_do_not_leave_the_store(store, result, log, earlier):
    if earlier:
        as_earlier_release(store, result)
    result_id = result.digest.result_id
    honest = store.page(result_id, 2, 4).rows
    assert honest == tuple(result.rows())[2:6]
    assert check_result(log, api.load_stored(store, result_id), keys=KEYRING).verdict.is_good
    forge_row(store, result)
    with pytest.raises(ResultForged):
        store.page(result_id, 2, 4)
    with pytest.raises(ResultForged):
        next(store.rows(result_id))  # before the first row is given
    with pytest.raises(ResultForged):
        next(result.rows())
    with pytest.raises(ResultForged):
        api.load_stored(store, result_id)


@pytest.mark.parametrize("name", ["rows.tree", "rows.idx", "coverage.json", "evidence.ndjson"])
def test_a_stored_result_of_which_any_file_is_another_is_not_verified(store, result, name):
    path = place(store, result) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result_id = result.digest.result_id
    with pytest.raises((ResultForged, InvalidJson, ResultDamaged)):
        (api.load_stored(store, result_id), [store.page(result_id, at, 1) for at in range(result.digest.row_count)])


def test_a_store_that_lost_its_last_rows_says_so(store, result):
    path = place(store, result) / "rows.ndjson"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(ResultForged):
        store.page(result.digest.result_id, 0, 1000)


def test_a_digest_whose_root_is_of_other_rows_than_its_hash_is_found(store, result, log):
    path = place(store, result) / "final.json"
    final = canonical.parse(path.read_bytes())
    final["digest"]["rows_root"] = "00" * 32
    path.write_bytes(canonical.encode(final))
    with pytest.raises(ResultForged, match="rows_root"):
        api.load_stored(store, result.digest.result_id)
    check = check_result(log, replace(result, digest=store.digest(result.digest.result_id)), keys=KEYRING)
    assert check.verdict.value is Outcome.BAD
    assert "rows_root" in check.verdict.reasons[0].text


def test_a_page_reads_few_nodes_however_large_the_result_is():
    """Growth: the proof of a page costs the logarithm of the result."""

    def cost(total):
        reads = []

        def node(height, index):
            reads.append((height, index))
            return bytes(32)

        PageProof.of(node, total // 2 - 5, total // 2, total)
        return len(reads)

    assert cost(200_000) < 2.5 * cost(100_000)
    assert cost(200_000) < 64


# --- the verdict of `query verify` over an empty, a half, a foreign and a grown log ---------------------------------


def test_a_result_over_no_entry_is_not_verified_by_nothing(tmp_path):
    """D-181: nothing was compared."""
    path = filled(tmp_path, 0).done()
    result = api.run(path, descriptor(), keys=KEYRING)
    verdict = check_result(path, result, keys=KEYRING).verdict
    assert verdict.value is Outcome.INCOMPLETE


def test_a_directory_that_ends_before_the_result_makes_the_verdict_incomplete(tmp_path, result):
    (tmp_path / "half").mkdir()
    verdict = check_result(filled(tmp_path / "half", 30, noise=False).done(), result, keys=KEYRING).verdict
    assert verdict.value is Outcome.INCOMPLETE
    assert any(row.behind for row in verdict.compared)
    (tmp_path / "none").mkdir()
    verdict = check_result(filled(tmp_path / "none", 0, noise=False).done(), result, keys=KEYRING).verdict
    assert verdict.value is Outcome.INCOMPLETE
    assert {row.read for row in verdict.compared} == {0}


def test_a_log_that_has_grown_still_verifies_the_result(tmp_path, result):
    (tmp_path / "grown").mkdir()
    check = check_result(filled(tmp_path / "grown", 90, noise=False).done(), result, keys=KEYRING)
    assert check.verdict.is_good
    assert sum(row.read for row in check.verdict.compared) == 60


def test_a_log_with_other_entries_makes_the_verdict_bad(tmp_path, result):
    (tmp_path / "other").mkdir()
    verdict = check_result(filled(tmp_path / "other", 200, seed=1, noise=False).done(), result, keys=KEYRING).verdict
    assert verdict.value is Outcome.BAD
    assert verdict.reasons[0].because is Because.EVIDENCE
