"""Client of a query service: `veen.lake.query.connect(url, token=…)`.

    with query.connect("https://query.example", token=token) as service:
        answer = service.ask({"scope": [name], "filter": {}, "projection": ["*"], "evidence": {"mode": "full"}})
        rows = list(answer.rows())

Rows are hashed as they arrive: they match the digest, or ResultForged is raised. The log shows that the digest is true:
`api.verify(data_dir, answer, keys=keyring)`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from veen.client.transport.http import tls_of
from veen.core import canonical
from veen.core.canonical import Json
from veen.lake.query.descriptor import QueryDescriptor, normalise
from veen.lake.query.digest import PageProof, ResultDigest, RowsHash, hash_of
from veen.lake.query.errors import ResultForged, ServiceRefused, ServiceUnreachable
from veen.lake.query.store import MAX_LIMIT

_PREFIX: Final = "/api/v1/query"
_MAX_ANSWER: Final = 64 << 20
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """A completed query of a service: the input of `api.verify`, and the rows."""

    descriptor: QueryDescriptor
    digest: ResultDigest
    coverage: Json
    record_event: Mapping[str, Json]  # where the service says that the request is recorded: `api.check_requested`
    _pages: Callable[[int], tuple[list[Json], bool]]

    def rows(self) -> Iterator[dict[str, Json]]:
        """Yield the rows in order, page by page.

        Raise ResultForged, at the end at the latest, unless they match the digest.
        """
        rows_hash, more = RowsHash(), True
        while more:
            page, more = self._pages(rows_hash.count)
            if more and not page:
                raise ResultForged("the service says that there are more rows and sends none")
            for row in page:
                rows_hash.add(canonical.encode(row))
                if rows_hash.count > self.digest.row_count:
                    raise ResultForged(f"the service sends more than the {self.digest.row_count} rows of the digest")
                yield row
        if (rows_hash.count, rows_hash.hexdigest()) != (self.digest.row_count, self.digest.rows_hash):
            raise ResultForged("the rows are not those of the digest: their hash differs")


def connect(
    url: str,
    *,
    token: str | bytes | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    ca_file: Path | None = None,
    timeout: float = 60.0,
) -> "QueryConnection":
    """Connect to a query service by its URL.

    `token` is the bearer token that its operator gave out; `client_cert` and `client_key` are files with a certificate
    that identifies the caller, instead. `ca_file` has the authority that signed the certificate of the service.
    Default: the system's.
    """
    return QueryConnection(
        url, token=token, client_cert=client_cert, client_key=client_key, ca_file=ca_file, timeout=timeout
    )


class QueryConnection:
    """Calls to one service; a context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: str | bytes | None = None,
        client_cert: Path | None = None,
        client_key: Path | None = None,
        ca_file: Path | None = None,
        timeout: float = 60.0,
    ) -> None:
        if token is None and client_cert is None:
            raise ServiceUnreachable(f"{url}: a token or a client certificate is required")
        is_encrypted = url.startswith("https://")
        if not is_encrypted and httpx2.URL(url).host not in ("127.0.0.1", "localhost", "::1"):
            raise ServiceUnreachable(f"{url}: a token goes to another machine over https:// only")
        if client_cert is not None and not is_encrypted:
            raise ServiceUnreachable(f"{url}: a client certificate is shown over https:// only")
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = (
                f"Bearer {(token.decode('ascii') if isinstance(token, bytes) else token).strip()}"
            )
        self._http = httpx2.Client(
            base_url=url.rstrip("/") + _PREFIX,
            headers=headers,
            timeout=timeout,
            verify=tls_of(ca_file, client_cert, client_key) if is_encrypted else True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(self, given: bytes | str | Mapping[str, Any], *, patience: float = 600.0) -> RemoteResult:
        """Submit a query and wait for its result. After `patience` seconds the query goes on: see `cancel`."""
        descriptor, _ = normalise(given)
        accepted = self.submit(descriptor.to_bytes())
        result_id = str(accepted["result_id"])
        wait, until = _FIRST_WAIT, time.monotonic() + patience
        while (status := self.status(result_id))["status"] in ("pending", "running"):
            if time.monotonic() > until:
                raise ServiceUnreachable(
                    f"result {result_id} is not there after {patience:g} s; it can be asked for later"
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        if status["status"] != "completed":
            raise ServiceRefused(str(status.get("error_code")), f"result {result_id}: {status.get('message')}")
        result = self.result(result_id)
        if result.descriptor != descriptor:
            raise ResultForged("the service answers another query than was asked")
        return result

    def submit(self, given: bytes | str | Mapping[str, Any]) -> dict[str, Json]:
        """Submit a query; return query_id, result_id and status."""
        data = given if isinstance(given, bytes) else given.encode() if isinstance(given, str) else None
        answer = self._call("POST", "/submit", canonical.encode(dict(given)) if data is None else data)  # type: ignore[arg-type]  # a mapping then
        digest = answer.get("result_digest")
        if digest is None:
            return answer
        return {"query_id": digest["query_id"], "result_id": digest["result_id"], "status": "completed"}

    def status(self, result_id: str) -> dict[str, Json]:
        return self._call("GET", f"/status/{result_id}")

    def cancel(self, result_id: str) -> dict[str, Json]:
        """Cancel a query and return its state: failed with the error_code `cancelled`, unless it had ended before."""
        return self._call("POST", f"/cancel/{result_id}")

    def page(self, result_id: str, offset: int = 0, limit: int = MAX_LIMIT) -> dict[str, Json]:
        """Return rows `offset` … `offset` + `limit` - 1. Raise ResultForged unless they match the digest.

        A page of a service of an earlier release has no proof: then all rows are fetched and hashed.
        """
        page = self._page(result_id, offset, limit)
        digest, rows = _digest(page), _member(page, "rows", list)
        if digest.result_id != result_id or len(rows) > limit:
            raise ResultForged("the page is of another result, or has more rows than were asked for")
        first = min(offset, digest.row_count)
        if digest.rows_root is not None and "proof" in page:
            PageProof.from_json(page["proof"]).check(digest, first, (canonical.encode(row) for row in rows))
        else:
            numbered = enumerate(self.result(result_id).rows())
            if rows != [row for number, row in numbered if first <= number < first + len(rows)]:
                raise ResultForged("the rows of the page are not those of the digest")
        return page

    def _page(self, result_id: str, offset: int = 0, limit: int = MAX_LIMIT) -> dict[str, Json]:
        return self._call("GET", f"/result/{result_id}?offset={offset}&limit={limit}")

    def descriptor(self, query_id: str) -> dict[str, Json]:
        """Return the descriptor of a query, and the place where it is recorded."""
        return self._call("GET", f"/descriptor/{query_id}")

    def result(self, result_id: str) -> RemoteResult:
        """Return a completed result. Raise ResultForged unless digest, descriptor and coverage match."""
        first = self._page(result_id)
        digest = _digest(first)
        about = self.descriptor(digest.query_id)
        descriptor = QueryDescriptor.from_bytes(canonical.encode(_member(about, "descriptor", dict)))
        coverage = self._call("GET", f"/coverage/{result_id}")
        if digest.result_id != result_id or descriptor.query_id != digest.query_id:
            raise ResultForged("the digest is of another query")
        if hash_of(coverage) != digest.coverage_hash:
            raise ResultForged("the coverage is not that of the digest")

        def page_at(offset: int) -> tuple[list[Json], bool]:
            page = first if offset == 0 else self._page(result_id, offset)
            if _digest(page) != digest:
                raise ResultForged("the digest changes from page to page")
            return _member(page, "rows", list), bool(_member(page, "page", dict).get("has_more"))

        return RemoteResult(
            descriptor=descriptor,
            digest=digest,
            coverage=coverage,
            record_event=_member(about, "record_event", dict),
            _pages=page_at,
        )

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Json]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = bytearray()
        try:
            with self._http.stream(method, path, content=body, headers=headers) as answer:
                for part in answer.iter_bytes():
                    data += part
                    if len(data) > _MAX_ANSWER:
                        raise ResultForged(f"an answer has more than {_MAX_ANSWER} bytes")
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ServiceUnreachable(f"{self._http.base_url}: {str(exc) or type(exc).__name__}") from exc
        try:
            value = canonical.parse(bytes(data), max_bytes=_MAX_ANSWER)
        except canonical.InvalidJson as exc:
            raise ServiceUnreachable(f"{self._http.base_url}: the answer is not JSON") from exc
        if type(value) is not dict:
            raise ServiceUnreachable(f"{self._http.base_url}: the answer is not a JSON object")
        if answer.status_code >= 400 and value.get("error_code") == ResultForged.error_code:
            raise ResultForged(f"the service says of its own result: {value.get('message')}")
        if answer.status_code >= 400:
            raise ServiceRefused(str(value.get("error_code", "internal_error")), str(value.get("message", "")))
        return value


def _digest(page: Mapping[str, Json]) -> ResultDigest:
    return ResultDigest.from_bytes(canonical.encode(_member(page, "result_digest", dict)))


def _member(value: Mapping[str, Json], name: str, kind: type) -> Any:
    member = value.get(name)
    if type(member) is not kind:
        raise ResultForged(f"the answer of the service has no {name}")
    return member
