"""Descriptors: one form for what is asked, and a named error for everything else (QRY-04 … QRY-11, QRY-25)."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake.query_builders import descriptor

from veen.core import canonical
from veen.core.canonical import InvalidJson
from veen.core.catalogue import catalogue
from veen.lake.query.descriptor import QueryDescriptor, new_query_id, new_result_id, normalise
from veen.lake.query.errors import InvalidDescriptor, QueryError, UnsupportedVersion, http_status_of, to_json
from veen.lake.query.fields import ALL, seconds_of, timestamp


@pytest.mark.req("QRY-05", "QRY-11")
def test_defaults_are_filled_in_and_the_form_is_canonical():
    normal = normalise(
        {
            "scope": ["record/b", "record/a", "record/b"],
            "filter": {"event_type": ["z", "a", "z"]},
            "projection": ["origin", "payload.*", "origin"],
            "evidence": {"mode": "spot", "sample_rate": 0.10},
        },
        new_id=lambda: "q-7",
    ).descriptor
    assert normal.to_bytes() == (
        b'{"evidence":{"mode":"spot","sample_rate":0.1},'
        b'"filter":{"event_type":["a","z"],"subject_id":null,"time":{"from":null,"to":null}},'
        b'"projection":["origin","payload"],"query_id":"q-7","scope":["record/a","record/b"],"version":1}'
    )
    assert QueryDescriptor.from_bytes(normal.to_bytes()) == normal
    assert normalise(normal.to_bytes()).descriptor == normal


@pytest.mark.req("QRY-08")
def test_the_star_stands_for_every_field():
    normal = normalise(descriptor(projection=["*"])).descriptor
    assert {field.name for field in normal.projection} == set(ALL)
    assert {"subject_id", "principal_id", "event_time", "origin", "event_type", "payload", "receipt_id"} <= set(ALL)


def test_equal_questions_have_equal_bytes_whatever_their_spelling():
    left = normalise(descriptor(query_id="q", scope=["b", "a"], filter={"time": None}, aggregate=None)).descriptor
    spelled = (
        '{"query_id":"q","version":1.0, "scope":["a","b","a"],"filter":{"subject_id":null},"projection":["*"],'
        '"evidence":{"mode":"none","sample_rate":null},"aggregate":null}'
    )
    other = normalise(spelled).descriptor
    assert left.to_bytes() == other.to_bytes()


def test_meta_is_kept_as_it_is():
    meta = {"requested_by": "é", "deep": [{"x": Decimal("0.5")}]}
    normal = normalise(canonical.encode(descriptor(meta=meta))).descriptor
    assert normal.to_json()["meta"] == meta
    assert "meta" not in normalise(descriptor()).descriptor.to_json()


@pytest.mark.req("QRY-02")
def test_ids_are_made_in_one_format():
    for name, prefix in ((new_query_id(), "q-"), (new_result_id(), "r-")):
        assert name.startswith(prefix)
        assert len(bytes.fromhex(name[2:])) == 16
    assert new_query_id() != new_query_id()
    assert normalise(descriptor()).descriptor.query_id.startswith("q-")


def condition(**changed):
    return {"field": "payload.n", "op": "=", "value": 1} | changed


BAD = {
    "no object": [],
    "scope missing": descriptor(scope=None),
    "scope empty": descriptor(scope=[]),
    "scope not a list": descriptor(scope="record/a"),
    "scope of numbers": descriptor(scope=[1]),
    "scope with an empty name": descriptor(scope=[""]),
    "scope a pattern": descriptor(scope=["record/*"]),
    "scope endless": descriptor(scope=[f"s{n}" for n in range(1025)]),
    "filter not an object": descriptor(filter=[]),
    "subject empty": descriptor(filter={"subject_id": ""}),
    "subject a number": descriptor(filter={"subject_id": 1}),
    "types empty": descriptor(filter={"event_type": []}),
    "types a text": descriptor(filter={"event_type": "login"}),
    "time a text": descriptor(filter={"time": "2025-11-19T03:20:00Z"}),
    "time backwards": descriptor(filter={"time": {"from": "2025-11-19T03:20:01Z", "to": "2025-11-19T03:20:00Z"}}),
    "time with fractions": descriptor(filter={"time": {"from": "2025-11-19T03:20:00.000Z"}}),
    "time of another zone": descriptor(filter={"time": {"from": "2025-11-19T03:20:00+00:00"}}),
    "time unknown": descriptor(filter={"time": {"until": None}}),
    "no such day": descriptor(filter={"time": {"to": "2025-02-29T00:00:00Z"}}),
    "projection missing": descriptor(projection=None),
    "projection empty": descriptor(projection=[]),
    "projection unknown": descriptor(projection=["nonsense"]),
    "projection star and more": descriptor(projection=["*", "origin"]),
    "projection empty path": descriptor(projection=["payload..a"]),
    "evidence missing": descriptor(evidence=None),
    "evidence unknown": descriptor(evidence={"mode": "most"}),
    "evidence more": descriptor(evidence={"mode": "none", "rate": 1}),
    "rate of none": descriptor(evidence={"mode": "none", "sample_rate": 0.5}),
    "rate of full": descriptor(evidence={"mode": "full", "sample_rate": 1}),
    "rate missing": descriptor(evidence={"mode": "spot"}),
    "rate zero": descriptor(evidence={"mode": "spot", "sample_rate": 0}),
    "rate negative": descriptor(evidence={"mode": "spot", "sample_rate": -0.1}),
    "rate above one": descriptor(evidence={"mode": "spot", "sample_rate": 1.0000000001}),
    "rate a text": descriptor(evidence={"mode": "spot", "sample_rate": "0.1"}),
    "rate true": descriptor(evidence={"mode": "spot", "sample_rate": True}),
    "metrics missing": descriptor(aggregate={}),
    "metrics empty": descriptor(aggregate={"metrics": []}),
    "metric unknown": descriptor(aggregate={"metrics": ["median(payload.n)"]}),
    "metric of nothing": descriptor(aggregate={"metrics": ["sum()"]}),
    "metric of an unknown field": descriptor(aggregate={"metrics": ["sum(nonsense)"]}),
    "count of a field": descriptor(aggregate={"metrics": ["count(origin)"]}),
    "group by unknown": descriptor(aggregate={"metrics": ["count"], "group_by": ["nonsense"]}),
    "aggregate more": descriptor(aggregate={"metrics": ["count"], "having": 1}),
    "meta a list": descriptor(meta=[]),
    "version a text": descriptor(version="1"),
    "version true": descriptor(version=True),
    "query_id empty": descriptor(query_id=""),
    "query_id a path": descriptor(query_id="../x"),
    "query_id too long": descriptor(query_id="q" * 129),
    "query_id beyond ASCII": descriptor(query_id="é"),
    "another member": descriptor(having=1),
    "where not a list": descriptor(filter={"where": {}}),
    "where endless": descriptor(filter={"where": [condition(value=n) for n in range(65)]}),
    "condition not an object": descriptor(filter={"where": ["payload.n=1"]}),
    "condition without a value": descriptor(filter={"where": [{"field": "payload.n", "op": "="}]}),
    "condition with more": descriptor(filter={"where": [condition(more=1)]}),
    "condition of an unknown field": descriptor(filter={"where": [condition(field="nonsense")]}),
    "condition of no field": descriptor(filter={"where": [condition(field=1)]}),
    "operator unknown": descriptor(filter={"where": [condition(op="!=")]}),
    "operator of SQL": descriptor(filter={"where": [condition(op="= 1 or 1")]}),
    "operator a list": descriptor(filter={"where": [condition(op=["="])]}),
    "condition null": descriptor(filter={"where": [condition(value=None)]}),
    "condition an object": descriptor(filter={"where": [condition(value={"a": 1})]}),
    "condition a long text": descriptor(filter={"where": [condition(value="x" * 4097)]}),
    "in nothing": descriptor(filter={"where": [condition(op="in", value=[])]}),
    "in one text": descriptor(filter={"where": [condition(op="in", value="abc")]}),
    "in lists": descriptor(filter={"where": [condition(op="in", value=[[1]])]}),
    "in too many": descriptor(filter={"where": [condition(op="in", value=list(range(1025)))]}),
    "prefix a number": descriptor(filter={"where": [condition(op="^=", value=1)]}),
    "time a number": descriptor(filter={"where": [condition(field="event_time", value=1)]}),
    "condition on fractions of a second": descriptor(
        filter={"where": [condition(field="event_time", value="2025-01-01T00:00:00.5Z")]}
    ),
    "limit zero": descriptor(limit=0),
    "limit true": descriptor(limit=True),
    "limit a text": descriptor(limit="1"),
    "order without a limit": descriptor(order=[{"field": "origin"}]),
    "order of too many rows": descriptor(order=[{"field": "origin"}], limit=100_001),
    "order of what is no row": descriptor(projection=["origin"], order=[{"field": "subject_id"}], limit=1),
    "order of what a group has not": descriptor(aggregate={"metrics": ["count"]}, order=[{"field": "origin"}], limit=1),
    "order sideways": descriptor(order=[{"field": "origin", "direction": "up"}], limit=1),
    "order a text": descriptor(order="origin", limit=1),
    "order of texts": descriptor(order=["origin"], limit=1),
}


@pytest.mark.req("QRY-05", "QRY-06", "QRY-07", "QRY-08", "QRY-09", "QRY-10", "QRY-11", "QRY-25")
@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_a_bad_descriptor_is_named_as_such(given):
    with pytest.raises(InvalidDescriptor) as caught:
        normalise(canonical.encode(given))
    assert to_json(caught.value) == {"error_code": "invalid_query_descriptor", "message": str(caught.value)}
    assert http_status_of(caught.value) == 400


@pytest.mark.req("QRY-25", "QRY-31")
def test_another_version_is_refused_by_its_own_code():
    with pytest.raises(UnsupportedVersion) as caught:
        normalise(descriptor(version=2))
    assert (caught.value.error_code, http_status_of(caught.value)) == ("unsupported_version", 400)


@pytest.mark.req("QRY-25")
@pytest.mark.parametrize("given", [b"{", b"\xff", b'{"scope":[],"scope":[]}', b"[NaN]", b" " * 70_000])
def test_what_is_not_json_is_refused_by_its_own_code(given):
    with pytest.raises(InvalidJson) as caught:
        normalise(given)
    assert (caught.value.error_code, http_status_of(caught.value)) == ("invalid_json", 400)


@pytest.mark.req("QRY-31")
def test_a_metric_of_a_later_version_is_refused():
    """001 query §10.2: filters may be ignored, metrics may not: a result without one would be another result."""
    with pytest.raises(InvalidDescriptor, match="median"):
        normalise(descriptor(aggregate={"metrics": ["median(payload.n)"]}))


@pytest.mark.req("QRY-31")
def test_a_filter_of_a_later_version_is_ignored_and_said_to_be():
    normal = normalise(descriptor(filter={"severity": "high", "subject_id": "a"}))
    assert normal.ignored == ("severity",)
    assert "severity" not in normal.descriptor.to_json()["filter"]


def test_a_recorded_descriptor_is_exactly_its_bytes():
    data = normalise(descriptor(query_id="q")).descriptor.to_bytes()
    for other in (data + b" ", data.replace(b'"version":1', b'"version":1.0'), data.replace(b"null", b"null ", 1)):
        with pytest.raises(QueryError):
            QueryDescriptor.from_bytes(other)


def test_every_code_of_an_error_has_a_status():
    def below(kind):
        return [kind, *(subclass for sub in kind.__subclasses__() for subclass in below(sub))]

    assert {kind for kind in below(QueryError) if not catalogue()[kind.error_code].http_status} == set()


@pytest.mark.req("QRY-04")
@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_timestamps_are_whole_seconds_of_utc_and_go_there_and_back(seconds):
    text = timestamp(seconds)
    assert len(text) == 20
    assert seconds_of(text) == seconds
    with pytest.raises(ValueError, match="fractions"):
        seconds_of(text[:-1] + ".0Z")


@pytest.mark.parametrize(
    "text",
    [
        "2025-11-19T03:20:60Z",
        "2025-13-01T00:00:00Z",
        "2025-11-19 03:20:00Z",
        "\u0662025-11-19T03:20:00Z",
        "2025-11-19T24:00:00Z",
        "",
    ],
)
def test_other_times_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - one reason or the other
        seconds_of(text)


def test_times_without_a_form_are_refused():
    with pytest.raises(ValueError, match="four digits"):
        timestamp(2**63)
    assert seconds_of("1970-01-01T00:00:00Z") == 0


members = ["scope", "filter", "projection", "evidence", "aggregate", "meta", "version", "query_id", "x"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=8), one, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(members), anything))
def test_any_object_is_normalised_or_refused_by_name(given_value):
    try:
        normal = normalise(canonical.encode(given_value))
    except QueryError:
        return
    assert QueryDescriptor.from_bytes(normal.descriptor.to_bytes()) == normal.descriptor


# --- conditions, order and limit ----------------------------------------------------------------------------------


def normal(**changed):
    return normalise(descriptor(query_id="q", **changed)).descriptor


def asking(*conditions, **members):
    return normal(filter={"where": list(conditions), **members})


def test_descriptors_without_conditions_keep_their_bytes_and_a_filter_may_be_absent():
    bare = normal(filter=None)
    assert bare == normal(filter={}) == normal(filter={"where": []}, order=[], limit=None)
    assert bare.to_json()["filter"] == {"event_type": None, "subject_id": None, "time": {"from": None, "to": None}}
    assert not bare.to_json().keys() & {"order", "limit"}


def test_conditions_have_one_form_whatever_their_spelling():
    left = asking(
        condition(op="in", value=[2, 1.0, 2]),
        condition(field="origin", op="^=", value="gw"),
        condition(op=">", value=0),
    )
    other = asking(
        condition(op=">", value=0),
        condition(field="origin", op="^=", value="gw"),
        condition(op="in", value=[1, 2]),
        condition(op=">", value=0),
    )
    assert left.to_bytes() == other.to_bytes()
    assert QueryDescriptor.from_bytes(left.to_bytes()) == left
    assert asking(condition(op="in", value=[7])) == asking(condition(value=7))
    assert [entry["value"] for entry in left.to_json()["filter"]["where"]] == ["gw", 0, [1, 2]]


def test_conditions_that_older_members_can_say_are_said_by_them():
    at = "2025-01-01T00:00:00Z"
    assert asking(condition(field="subject_id", value="a")) == normal(filter={"subject_id": "a"})
    assert asking(condition(field="event_type", op="in", value=["b", "a"])) == normal(filter={"event_type": ["a", "b"]})
    assert asking(condition(field="event_type", value="a"), event_type=["a", "b"]) == normal(
        filter={"event_type": ["a"]}
    )
    assert asking(condition(field="hub_commit_time", value=at)) == normal(filter={"time": {"from": at, "to": at}})
    between = asking(
        condition(field="hub_commit_time", op=">", value=at),
        condition(field="hub_commit_time", op="<", value=at[:-3] + "09Z"),
    )
    assert between.filter.where == ()
    assert between.filter.to_json()["time"] == {"from": "2025-01-01T00:00:01Z", "to": "2025-01-01T00:00:08Z"}


@pytest.mark.parametrize(
    "conditions",
    [
        (condition(field="subject_id", value="a"), condition(field="subject_id", value="b")),
        (condition(field="event_type", value="a"), condition(field="event_type", value="b")),
        (
            condition(field="hub_commit_time", op=">", value="2025-01-01T00:00:00Z"),
            condition(field="hub_commit_time", op="<", value="2025-01-01T00:00:00Z"),
        ),
        (condition(field="hub_commit_time", op="<", value="0001-01-01T00:00:00Z"),),
        (condition(field="hub_commit_time", op=">", value="9999-12-31T23:59:59Z"),),
        (condition(field="subject_id", value=""),),
        (condition(field="event_type", value=3),),
    ],
)
def test_conditions_that_contradict_stay_conditions_and_their_form_is_stable(conditions):
    normalised = asking(*conditions)
    assert len(normalised.filter.where) == 1
    assert QueryDescriptor.from_bytes(normalised.to_bytes()) == normalised


def test_an_order_names_a_field_once_and_its_direction_always():
    fields = [{"field": "payload.*"}, {"field": "origin", "direction": "desc"}, {"field": "origin"}]
    ordered = normal(order=fields, limit=5)
    assert ordered.to_json()["order"] == [
        {"field": "payload", "direction": "asc"},
        {"field": "origin", "direction": "desc"},
    ]
    assert QueryDescriptor.from_bytes(ordered.to_bytes()) == ordered
