"""Discovery: the directory as a fold, questions to it, and who may publish (001 spec-5, D-112, D-150 … D-152)."""

import asyncio
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.waiting import eventually

from veen.core.hashing import H
from veen.core.labels import hub_id_of
from veen.overlays.discovery.bodies import (
    ADVERTS,
    QUERY,
    RESULT,
    STREAMS,
    AuthPolicy,
    DiscoveryFault,
    DiscoveryQuery,
    DiscoveryResult,
    Endpoint,
    HubAdvert,
    OverlayAdvert,
    ServiceAdvert,
    ServiceOperator,
    advertise,
    overlay_id_of,
    retire,
    service_id_of,
)
from veen.overlays.discovery.directory import MAX_LIMIT, DirectoryFold, Publishers, answer
from veen.overlays.discovery.server import DiscoveryServer, FoldedDirectory, ask
from veen.overlays.framework.schema import Draft, InvalidBody
from veen.overlays.rpc.ends import NoAnswer
from veen.testing.events import FakeLog
from veen.testing.laws import check_laws
from veen.testing.links import FakeHub

NAMES = {"hub": "disc.hubs.v1", "overlay": "disc.overlays.v1", "service": "disc.services.v1"}
RPC, SCHEMA = overlay_id_of("rpc"), H(b"rpc.v1")
REGIONS, TAGS, METHODS = ("north", "south"), ("public", "beta"), ("add", "pay")


def hub(name=b"hub", *, region="north", tags=("public",), overlays=(RPC,), ttl=100):
    pk = H(name)
    return HubAdvert(
        hub_id=hub_id_of(pk),
        hub_pk=pk,
        profile_id=H(b"profile"),
        region=region,
        tags=tags,
        endpoints=(Endpoint(kind="http", url="http://127.0.0.1:8080"), Endpoint(kind="pigeon", url="loft 3")),
        overlays=overlays,
        ttl_sec=ttl,
        version="1",
    )


def overlay(name="rpc", *, schemas=(SCHEMA,), tags=(), ttl=100):
    return OverlayAdvert(
        overlay_id=overlay_id_of(name), name=name, version="1", schemas=schemas, tags=tags, ttl_sec=ttl
    )


def service(name="calc", *, methods=("add",), regions=("north",), tags=("public",), ttl=100, owner=b"operator"):
    return ServiceAdvert(
        service_id=service_id_of(H(owner), name),
        name=name,
        overlay_id=RPC,
        methods=methods,
        stream_ids=(H(b"requests"), H(b"replies")),
        regions=regions,
        required_caps=("write",),
        auth_policy=AuthPolicy(mode="cap_token", details={"issuer": b"\x01"}),
        operator=ServiceOperator(org="us"),
        tags=tags,
        ttl_sec=ttl,
    )


KIND = {HubAdvert: "hub", OverlayAdvert: "overlay", ServiceAdvert: "service"}


class Log(FakeLog):
    def say(self, advert, *, client="alice", ts=None, **more):
        return self.append(advertise(advert, **more), stream=NAMES[KIND[type(advert)]], client=client, ts=ts)

    def end(self, advert, *, client="alice", ts=None):
        kind = KIND[type(advert)]
        return self.append(retire(kind, advert.id, "moved"), stream=NAMES[kind], client=client, ts=ts)


def directory(log, as_of=None, **options):
    fold = DirectoryFold(**options)
    summary = fold.summarize(log.all())
    return fold.view(summary, as_of), [issue.code for issue in fold.issues(summary)]


@pytest.mark.req("DISC-01")
def test_the_streams_are_those_of_the_document():
    assert {kind: H(name.encode()) for kind, name in NAMES.items()} == STREAMS


@pytest.mark.req("DISC-02", "DISC-03", "DISC-04")
@pytest.mark.parametrize(
    ("advert", "keys"),
    [
        (hub(), "hub_id hub_pk profile_id region tags endpoints overlays ttl_sec version"),
        (replace(overlay(), docs_url="u"), "overlay_id name version schemas docs_url tags ttl_sec"),
        (
            service(),
            "service_id name overlay_id methods stream_ids regions required_caps auth_policy operator tags ttl_sec",
        ),
    ],
    ids=["hub", "overlay", "service"],
)  # fmt: skip
def test_descriptors_have_the_keys_of_the_document_in_its_order(advert, keys):
    draft = advertise(advert)
    assert draft.schema == H(advert.KIND.encode())
    tree = cbor2.loads(draft.body)
    assert list(tree) == keys.split()
    assert type(advert).from_tree(tree) == advert
    kind = KIND[type(advert)]
    gone = retire(kind, advert.id, "moved")
    assert gone.schema == H(f"disc.{kind}.retire.v1".encode())
    assert cbor2.loads(gone.body) == {f"{kind}_id": advert.id, "reason": "moved"}


@pytest.mark.req("DISC-07", "DISC-08")
def test_questions_and_answers_have_their_keys_and_an_answer_is_good_or_has_an_error():
    query = DiscoveryQuery(kind="hub", filter={"region": "north"}, limit=1, offset=2)
    assert cbor2.loads(QUERY.draft(query).body) == {
        "kind": "hub",
        "filter": {"region": "north"},
        "limit": 1,
        "offset": 2,
    }
    fault = DiscoveryFault(code="DISC.KIND")
    cases: tuple[dict[str, Any], ...] = (
        {"ok": True, "results": [], "more": False, "error": fault},
        {"ok": False, "results": [], "more": False},
        {"ok": False, "results": [{}], "more": False, "error": fault},
        {"ok": True, "results": {}, "more": False},
    )
    for fields in cases:
        with pytest.raises(InvalidBody, match=r"DISC\.ANSWER"):
            DiscoveryResult(**fields).to_bytes()


def test_ids_follow_from_names_and_keys_and_a_rotated_hub_is_flagged():
    """D-150"""
    assert service().service_id != service(owner=b"another").service_id
    assert not hub().is_rotated
    assert replace(hub(), hub_pk=H(b"next")).is_rotated


def test_an_endpoint_has_the_scheme_of_its_kind_and_unknown_kinds_are_kept():
    with pytest.raises(InvalidBody, match=r"DISC\.ENDPOINT"):
        Endpoint(kind="https", url="http://x").to_bytes()
    log = Log()
    log.say(hub())
    listing = directory(log)[0].hubs[hub().id]
    assert [endpoint.kind for endpoint in listing.descriptor.endpoints] == ["http", "pigeon"]


@pytest.mark.req("DISC-05", "DISC-06")
def test_advertise_replaces_retire_hides_and_a_later_advertise_revives():
    log = Log()
    log.say(service(), ts=1_000)
    log.say(service(methods=("add", "pay")), ts=1_010)
    before = directory(log)[0]
    assert before.services[service().id].descriptor.methods == ("add", "pay")
    log.end(service(), ts=1_020)
    gone = directory(log)[0]
    assert gone.services == {}
    assert [(item.is_retired, item.reason) for item in gone.hidden] == [(True, "moved")]
    log.say(service(), ts=1_030)
    assert list(directory(log)[0].services) == [service().id]


@pytest.mark.req("DISC-05")
def test_expiry_is_judged_at_the_second():
    """D-112: the time in the header if there is one, else hub_ts + ttl_sec; that second included."""
    log = Log()
    log.say(hub(ttl=100), ts=1_000)
    log.say(overlay(ttl=100), ts=1_000, expires_at=1_040)
    assert [len(directory(log, at)[0].hubs) for at in (1_100, 1_101)] == [1, 0]
    assert [len(directory(log, at)[0].overlays) for at in (1_040, 1_041)] == [1, 0]


class TestPublishers:
    """D-151"""

    def hijacked(self):
        log = Log()
        log.say(service())
        log.say(service(methods=("steal",)), client="mallory")
        log.end(service(), client="mallory")
        return log

    def test_the_first_publisher_owns_an_id(self):
        view, codes = directory(self.hijacked())
        assert view.services[service().id].descriptor.methods == ("add",)
        assert codes == ["DISC.PUBLISHER", "DISC.PUBLISHER"]

    def test_an_id_passes_on_by_a_retire_of_its_owner(self):
        log = self.hijacked()
        log.end(service())
        log.say(service(methods=("pay",)), client="bob")
        view, codes = directory(log)
        assert view.services[service().id].publisher == H(b"bob")
        assert codes == ["DISC.PUBLISHER", "DISC.PUBLISHER"]
        log.say(service())  # alice gave it away
        assert directory(log)[1][-1] == "DISC.PUBLISHER"

    def test_pinned_publishers_shut_out_everyone_else_also_the_first(self):
        view, codes = directory(self.hijacked(), publishers=Publishers.of([H(b"bob")]))
        assert (view.services, codes) == ({}, ["DISC.PUBLISHER"] * 3)

    def test_an_open_directory_takes_the_last_record(self):
        view, codes = directory(self.hijacked(), publishers=Publishers(is_open=True))
        assert (view.services, codes) == ({}, [])


def test_records_elsewhere_and_retires_of_nothing_have_codes_and_change_nothing():
    log = Log()
    log.append(advertise(service()), stream="elsewhere")
    log.end(hub())
    log.append(Draft(schema=ADVERTS["hub"].id, body=b"\xa0"), stream=NAMES["hub"])
    log.append(Draft(schema=ADVERTS["service"].id, body=advertise(service()).body + b"\x00"), stream=NAMES["service"])
    view, codes = directory(log)
    assert (view.hubs, view.services) == ({}, {})
    assert sorted(codes) == ["DISC.STREAM", "DISC.UNKNOWN", "OVL.BODY", "OVL.CBOR"]
    with pytest.raises(InvalidBody, match=r"DISC\.NAME"):
        overlay("").to_bytes()


def asked(view, kind, filters=None, **more):
    return answer(view, DiscoveryQuery(kind=kind, filter=filters or {}, **more))


@pytest.mark.req("DISC-07", "DISC-09")
def test_each_filter_keeps_what_it_names():
    log = Log()
    for region in REGIONS:
        log.say(hub(region.encode(), region=region, tags=(region,)))
    log.say(overlay()), log.say(overlay("crdt", schemas=(H(b"crdt"),), tags=("beta",)))
    log.say(service()), log.say(service("bank", methods=("pay",), regions=("south",), tags=()))
    view = directory(log)[0]

    def names(kind, **filters):
        result = asked(view, kind, filters)
        assert result.ok
        return sorted(entry.get("name") or entry["region"] for entry in result.results)

    assert names("hub") == ["north", "south"]
    assert names("hub", region="north") == names("hub", tags_any=["north", "east"]) == ["north"]
    assert names("hub", tags_any=[]) == names("hub", overlay_id=RPC) == ["north", "south"]
    assert names("hub", overlay_id=H(b"x")) == []
    assert names("overlay", name_prefix="r") == names("overlay", schema=H(b"rpc.v1")) == ["rpc"]
    assert names("overlay", tags_any=["beta"]) == ["crdt"]
    assert names("service", method="pay") == names("service", region="south") == ["bank"]
    assert names("service", name_prefix="ca") == names("service", tags_any=["public"]) == ["calc"]
    assert names("service", overlay_id=RPC, method="add", region="north") == ["calc"]
    assert names("service", method="add", region="south") == []


@pytest.mark.req("DISC-08")
def test_what_no_filter_has_is_refused_and_never_ignored():
    """D-152"""
    view = directory(Log())[0]
    for kind, filters, code in (
        ("planet", {}, "DISC.KIND"),
        ("hub", {"method": "add"}, "DISC.FILTER"),
        ("hub", {"region": 3}, "DISC.FILTER"),
        ("hub", {"tags_any": "public"}, "DISC.FILTER"),
        ("hub", {"tags_any": [1]}, "DISC.FILTER"),
        ("hub", {1: "north"}, "DISC.FILTER"),
        ("service", {"overlay_id": "rpc"}, "DISC.FILTER"),
    ):
        result = asked(view, kind, filters)
        assert (result.ok, result.results, result.more) == (False, [], False)
        assert result.error is not None
        assert result.error.code == code
    result = answer(view, DiscoveryQuery(kind="hub", filter=[]))
    assert result.error is not None
    assert result.error.code == "DISC.FILTER"


@pytest.mark.req("DISC-09")
@examples(40)
@given(st.integers(0, 7), st.integers(0, 9), st.integers(0, 9))
def test_pages_are_slices_of_the_whole_in_the_order_of_ids(count, offset, limit):
    """D-112, D-152: more if and only if matches > offset + limit."""
    log = Log()
    for number in range(count):
        log.say(service(f"s{number}"))
    view = directory(log)[0]
    whole = asked(view, "service").results
    assert [entry["service_id"] for entry in whole] == sorted(entry["service_id"] for entry in whole)
    page = asked(view, "service", limit=limit, offset=offset)
    assert page.results == whole[offset : offset + limit]
    assert page.more == (count > offset + limit)


@pytest.mark.req("DISC-09")
def test_a_limit_beyond_the_maximum_is_the_maximum():
    log = Log()
    for number in range(MAX_LIMIT + 1):
        log.say(overlay(f"o{number}"))
    result = asked(directory(log)[0], "overlay", limit=10**9)
    assert (len(result.results), result.more) == (MAX_LIMIT, True)
    assert len(asked(directory(log)[0], "overlay").results) == 100


# --- fold and RPC ------------------------------------------------------------------------------------------------

adverts = st.one_of(
    st.builds(
        hub, st.sampled_from([b"a", b"b"]), region=st.sampled_from(REGIONS), tags=st.just(TAGS), ttl=st.integers(0, 9)
    ),
    st.builds(overlay, st.sampled_from(["rpc", "crdt"]), ttl=st.integers(0, 9)),
    st.builds(
        service, st.sampled_from(["calc", "bank"]), methods=st.lists(st.sampled_from(METHODS)).map(tuple),
        ttl=st.integers(0, 9),
    ),
)  # fmt: skip
queries = st.one_of(
    st.builds(DiscoveryQuery, kind=st.just("hub"), filter=st.sampled_from([{}, {"region": "north"}, {"x": 1}])),
    st.builds(DiscoveryQuery, kind=st.just("overlay"), filter=st.sampled_from([{}, {"name_prefix": "r"}])),
    st.builds(
        DiscoveryQuery, kind=st.just("service"), filter=st.sampled_from([{}, {"method": "add"}]),
        limit=st.integers(0, 2) | st.none(), offset=st.integers(0, 2) | st.none(),
    ),
)  # fmt: skip


@pytest.mark.req("CONN-07", "DISC-06", "DISC-09")
@examples(30, deadline=None)
@given(
    st.lists(st.tuples(adverts, st.booleans(), st.sampled_from(["alice", "bob"]), st.integers(0, 4)), max_size=10),
    queries,
)
def test_a_question_and_a_local_fold_give_the_same_answer(records, query):
    async def scenario():
        fabric = FakeHub()
        for advert, ends, client, pause in records:
            fabric.log.now += pause
            kind = KIND[type(advert)]
            draft = retire(kind, advert.id) if ends else advertise(advert)
            await fabric.append(draft, NAMES[kind], client)
        for name in NAMES.values():
            fabric.name_of(name)
        served = FoldedDirectory(fabric.link("server"), DirectoryFold(), NAMES)
        server = asyncio.create_task(DiscoveryServer(fabric.link("server"), "questions", served).run())
        try:
            by_rpc = await ask(fabric.link("carol"), "questions", query)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
        local = FoldedDirectory(fabric.link("carol"), DirectoryFold(), NAMES)
        await local.refresh()
        assert by_rpc == answer(local.at(fabric.log.now), query)

    asyncio.run(scenario())


def test_answers_of_strangers_and_silence_are_not_taken(monkeypatch):
    async def scenario():
        fabric = FakeHub()
        fabric.name_of("questions")
        caller = fabric.link("carol")

        async def lie():
            async for entry in fabric.link("mallory").follow("questions", from_seq=1):
                if entry.event is not None and entry.event.hdr.schema == QUERY.id:
                    lying = DiscoveryResult(ok=True, results=[{"name": "evil"}], more=False)
                    await fabric.append(RESULT.draft(lying, parent_id=entry.event.msg_id), "questions", "mallory")

        liar = asyncio.create_task(lie())
        query = DiscoveryQuery(kind="hub", filter={})
        try:
            assert (await ask(caller, "questions", query)).results == [{"name": "evil"}]
            with pytest.raises(NoAnswer):
                await ask(caller, "questions", query, servers=[H(b"server")], timeout=0.2)
        finally:
            liar.cancel()
            await asyncio.gather(liar, return_exceptions=True)

    asyncio.run(scenario())


def test_a_server_answers_what_was_asked_while_it_was_away_once_and_also_what_it_cannot_read():
    async def scenario():
        fabric = FakeHub()
        for name in NAMES.values():
            fabric.name_of(name)
        await fabric.append(QUERY.draft(DiscoveryQuery(kind="hub", filter={})), "questions", "carol")
        await fabric.append(Draft(schema=QUERY.id, body=b"\xff"), "questions", "carol")
        results = []
        for count in (2, 3):  # of answers, by the first server and the one that takes its place
            served = FoldedDirectory(fabric.link("server"), DirectoryFold(), NAMES)
            server = DiscoveryServer(fabric.link("server"), "questions", served, report=lambda q, r: results.append(r))
            running = asyncio.create_task(server.run())
            await eventually(lambda: len(results) >= count)  # noqa: B023 - awaited here
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await fabric.append(QUERY.draft(DiscoveryQuery(kind="hub", filter={})), "questions", "carol")
        assert [result.ok for result in results] == [True, False, True]

    asyncio.run(scenario())


@examples(40)
@given(st.data())
def test_the_fold_obeys_the_laws(data):
    def write(draw, log):
        advert = draw(adverts)
        return retire(KIND[type(advert)], advert.id) if draw(st.integers(0, 3)) == 0 else advertise(advert)

    check_laws(data, lambda **options: DirectoryFold(any_stream=True, **options), write)
