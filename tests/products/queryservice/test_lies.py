"""Services that lie: the client, or the log, finds out (issue: omitted, reordered, changed, narrowed, old)."""

import shutil

import pytest
from tests.cli.homes import Cli
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, descriptor, filled
from tests.products.queryservice.services import TOKENS, log_at, served
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.core import canonical
from veen.core.tree.mmr import Mmr
from veen.lake import query
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.digest import Coverage, RowsHash, hash_of, row_leaf
from veen.lake.query.errors import EvidenceFailed, ResultForged, ServiceRefused, ServiceUnreachable
from veen.overlays.recorder import events as sdr
from veen.products.queryservice.service import QueryService

ASKED = descriptor(query_id="q-lie", scope=[STREAMS[0]], evidence={"mode": "full"})


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("lies") / "log")


class Lying(QueryService):
    """Changes rows and coverage after an honest execution, and makes a digest that fits them."""

    def _answer(self, request, control):
        digest = super()._answer(request, control)
        directory = self._store._directory(request.result_id)
        rows = self.rows([canonical.parse(line) for line in (directory / "rows.ndjson").read_bytes().splitlines()])
        coverage = self.coverage_of(canonical.parse((directory / "coverage.json").read_bytes()))
        hashed, tree, nodes, lines, index = RowsHash(), Mmr(), b"", b"", b""
        for row in rows:
            data = canonical.encode(row)
            hashed.add(data)
            nodes += b"".join(tree.append(row_leaf(data)))
            index += len(lines).to_bytes(8, "big")
            lines += data + b"\n"
        changes = {"row_count": hashed.count, "rows_hash": hashed.hexdigest(), "coverage_hash": hash_of(coverage)}
        changes["rows_root"] = tree.root().hex()
        forged = type(digest).from_bytes(canonical.encode(digest.to_json() | changes))
        (directory / "rows.ndjson").write_bytes(lines)
        (directory / "rows.idx").write_bytes(index)
        (directory / "rows.tree").write_bytes(nodes)
        for name in ("coverage.json", "digest.json"):
            (directory / name).unlink()
        self._store.prepare(request.result_id, forged, Coverage(coverage, {}))
        return forged

    def rows(self, rows):
        return rows

    def coverage_of(self, coverage):
        return coverage


class Omits(Lying):
    def rows(self, rows):
        return rows[:2] + rows[3:]


class Reorders(Lying):
    def rows(self, rows):
        return [rows[1], rows[0], *rows[2:]]


class Changes(Lying):
    def rows(self, rows):
        return [*rows[:-1], rows[-1] | {"subject_id": "somebody else"}]


def ask(url, given=ASKED):
    with query.connect(url, token=TOKENS["alice"]) as service:
        answer = service.ask(given)
        return answer, list(answer.rows())


def test_an_honest_service_is_verified_with_the_log_alone(tmp_path, log):
    with served(tmp_path, log) as url:
        answer, rows = ask(url)
    assert rows == list(api.run(log, ASKED, keys=KEYRING).rows())
    assert api.verify(log, answer, keys=KEYRING).ok
    api.check_fresh(log, answer)


@pytest.mark.parametrize("kind", [Omits, Reorders, Changes])
def test_rows_that_were_changed_before_they_were_hashed_are_found_by_the_log(tmp_path, log, kind):
    with served(tmp_path, log, kind) as url:
        answer, _ = ask(url)
    comparison = api.verify(log, answer, keys=KEYRING)
    assert "rows_hash" in comparison.differences


def test_an_answer_from_a_shorter_log_is_found_to_leave_out_what_was_there(tmp_path, log):
    """Rows and roots of a narrow or an old result hold: what convicts it is what stood in the log when it was made."""
    filled(tmp_path / "old", 30).done()
    with served(tmp_path / "service", str(tmp_path / "old"), now=lambda: 1_900_000_000) as url:
        answer, _ = ask(url)
    assert api.verify(log, answer, keys=KEYRING).ok
    with pytest.raises(EvidenceFailed, match="stood in the log"):
        api.check_fresh(log, answer)


class Replays(QueryService):
    """Answers a new query with the result of an earlier one."""

    def _request(self, principal, result_id):
        request = super()._request(principal, result_id)
        first = next(iter(self._history.results.values()))
        return first if request.descriptor.query_id == "q-new" else request

    async def result(self, principal, result_id, offset, limit):
        return await super().result(principal, self._request(principal, result_id).result_id, offset, limit)


def test_the_result_of_another_query_is_not_taken_for_the_answer(tmp_path, log):
    with served(tmp_path, log, Replays) as url:
        ask(url)
        with pytest.raises(ResultForged, match="another query"):
            ask(url, descriptor(query_id="q-new", scope=[STREAMS[1]]))


# --- veen query verify -------------------------------------------------------------------------------------------


class Narrows(Lying):
    """Answers from fewer entries than there were, and says so in roots and ranges that hold."""

    shorter: str  # a directory

    def _answer(self, request, control):
        object.__setattr__(self._settings, "data_dir", self.shorter)
        return QueryService._answer(self, request, control)


class ReplaysOld(QueryService):
    """Gives the result of last week another name: rows, roots and hashes hold, and so does its time of execution."""

    def _answer(self, request, control):
        object.__setattr__(self._settings, "now", lambda: 1_600_000_000)
        return super()._answer(request, control)


@pytest.fixture
def verifier(tmp_path):
    """Somebody with the read keys, at the command line."""
    (tmp_path / "keys").write_text("".join(f"{keys.to_text()}\n" for keys in KEYS.values()))
    (tmp_path / "token").write_text(TOKENS["alice"])
    for name in ("keys", "token"):
        (tmp_path / name).chmod(0o600)
    return Cli(tmp_path / "home")


def verified(verifier, tmp_path, url, data_dir, code):
    with query.connect(url, token=TOKENS["alice"]) as connection:
        result_id = connection.submit(ASKED)["result_id"]
    return verifier.run(
        "query", "verify", result_id, "--data-dir", data_dir, "--key-file", tmp_path / "keys", "--engine", "python",
        "--service", url, "--service-token", tmp_path / "token", code=code,
    )  # fmt: skip


def filler(tmp_path):
    """Puts events into the hub of the service; a copy of the hub has the first half of them."""

    async def fill(world):
        for number in range(12):
            draft = sdr.event(
                subject_id="user:1",
                principal_id=world.client.client_id,
                event_type="login",
                event_time=1_700_000_000,
                origin="gw",
                payload={"n": number},
            )
            await world.client.send(STREAMS[0], draft.body, schema=draft.schema)
            if number == 5:
                shutil.copytree(tmp_path / "hub", tmp_path / "short", ignore=shutil.ignore_patterns("local"))

    return fill


def test_the_command_finds_an_honest_service_honest(tmp_path, verifier):
    hub = str(tmp_path / "hub")
    with served(tmp_path, hub, prepare=filler(tmp_path), now=lambda: 1_900_000_000) as url:
        result = verified(verifier, tmp_path, url, hub, Exit.OK)
    assert "rows_hash" in result.stdout
    assert "not checked" not in result.stderr


def test_the_command_says_if_the_log_does_not_have_the_request(tmp_path, log, verifier):
    with served(tmp_path, log, now=lambda: 1_900_000_000) as url:
        assert "not checked that the result is younger" in verified(verifier, tmp_path, url, log, Exit.OK).stderr


@pytest.mark.parametrize(
    ("kind", "why"),
    spread(
        [
            (Omits, "row_count"),
            (Reorders, "rows_hash"),
            (Changes, "rows_hash"),
            (Narrows, "stood in the log"),
            (ReplaysOld, "before its request stood in the log"),
        ],
        1,
    ),
)
def test_five_hostile_services_are_found_by_the_command(tmp_path, verifier, kind, why):
    """With the log alone: that of the hub, which also has the records of the service."""
    hostile = type("Hostile", (kind,), {"shorter": str(tmp_path / "short")})
    hub = str(tmp_path / "hub")
    with served(tmp_path, hub, hostile, prepare=filler(tmp_path), now=lambda: 1_900_000_000) as url:
        result = verified(verifier, tmp_path, url, hub, Exit.BAD_EVIDENCE)
    assert why in result.stderr


class SendsOthers(QueryService):
    """Keeps the honest digest and sends other rows."""

    async def result(self, principal, result_id, offset, limit):
        page = dict(await super().result(principal, result_id, offset, limit))
        page["rows"] = self.sent(page["rows"])
        return page

    def sent(self, rows):
        return rows[:-1]


class SendsMore(SendsOthers):
    def sent(self, rows):
        return [*rows, rows[0]]


@pytest.mark.parametrize("kind", [SendsOthers, SendsMore])
def test_rows_that_are_not_those_of_the_digest_are_refused_by_the_client(tmp_path, log, kind):
    with served(tmp_path, log, kind, sync_entries=0) as url, pytest.raises(ResultForged):
        ask(url)


def test_a_refusal_and_a_service_that_is_not_there_have_their_own_errors(tmp_path, log):
    with served(tmp_path, log) as url:
        with query.connect(url, token="wrong") as service, pytest.raises(ServiceRefused, match="unauthorized"):
            service.status("r-1")
        with query.connect(url, token=TOKENS["alice"]) as service, pytest.raises(ServiceRefused, match="not_found"):
            service.result("r-1")
    with query.connect(url, token=TOKENS["alice"]) as service, pytest.raises(ServiceUnreachable):
        service.submit(normalise(ASKED).descriptor.to_bytes())
    with pytest.raises(ServiceUnreachable, match="https"):
        query.connect("http://query.example", token="secret")


def fetched(verifier, tmp_path, url, result_id, code, *more):
    place = ("--service", url, "--service-token", tmp_path / "token")
    return verifier.run("query", "result", result_id, *place, "--limit", 3, *more, code=code)


def test_forged_rows_of_the_store_of_a_service_are_not_printed(tmp_path, log, verifier):
    """Somebody changes a row in the store of an honest service."""
    with served(tmp_path, log) as url:
        with query.connect(url, token=TOKENS["alice"]) as connection:
            result_id = connection.submit(ASKED)["result_id"]
        fetched(verifier, tmp_path, url, result_id, Exit.OK)
        path = next(tmp_path.rglob(f"{result_id}/rows.ndjson"))
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"event_type":"', b'"event_type":"\\', 1)[: len(data)])
        for mode in ((), ("--json",), ("--ndjson",)):
            failed = fetched(verifier, tmp_path, url, result_id, Exit.BAD_EVIDENCE, *mode)
            assert "event_type" not in failed.output


@pytest.mark.parametrize("kind", [SendsOthers, SendsMore])
def test_a_page_with_other_rows_than_the_digest_has_is_not_printed(tmp_path, log, verifier, kind):
    """A page is held to its proof, by the client."""
    with served(tmp_path, log, kind, sync_entries=0) as url:
        with query.connect(url, token=TOKENS["alice"]) as connection:
            accepted = connection.submit(ASKED)
            until(lambda: connection.status(accepted["result_id"])["status"] == "completed")
        assert "event_type" not in fetched(verifier, tmp_path, url, accepted["result_id"], Exit.BAD_EVIDENCE).output


class WithoutProofs(QueryService):
    """A service of an earlier release: no root in the digest that it sends, no proof of a page."""

    forged = False

    async def result(self, principal, result_id, offset, limit):
        page = dict(await super().result(principal, result_id, offset, limit))
        del page["proof"]
        page["result_digest"] = {name: value for name, value in page["result_digest"].items() if name != "rows_root"}
        if self.forged:
            page["rows"] = [{**page["rows"][0], "subject_id": "somebody else"}, *page["rows"][1:]]
        return page


@pytest.mark.parametrize("forged", [False, True])
def test_a_page_of_a_service_of_an_earlier_release_is_checked_by_all_rows(tmp_path, log, verifier, forged):
    hostile = type("Earlier", (WithoutProofs,), {"forged": forged})
    with served(tmp_path, log, hostile) as url:
        with query.connect(url, token=TOKENS["alice"]) as connection:
            result_id = connection.submit(ASKED)["result_id"]
        result = fetched(verifier, tmp_path, url, result_id, Exit.BAD_EVIDENCE if forged else Exit.OK)
    assert "somebody else" not in result.output
    assert forged or result.output.count("\n") >= 3
