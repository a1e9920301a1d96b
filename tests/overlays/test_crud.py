"""CRUD: records and their revisions (D-84)."""

import pytest

from veen.overlays import crud
from veen.overlays.framework.schema import Draft
from veen.testing.events import FakeLog


def outcome(log: FakeLog, as_of: int | None = None):
    fold = crud.CrudFold()
    summary = fold.summarize(log.all())
    records = {
        (entity, id_): (record.rev, record.fields.value if record.fields else None)
        for entity, by_id in fold.view(summary, as_of).items()
        for id_, record in by_id.items()
    }
    return records, [(issue.stream_seq, issue.code) for issue in fold.issues(summary)]


@pytest.mark.req("CKQ-01")
def test_records_are_created_updated_and_deleted_and_reads_are_views():
    log = FakeLog()
    log.extend(
        [
            crud.create("user", "1", {"name": "Ann", "age": 3}),
            crud.update("user", "1", {"age": 4, "mail": "a@b"}),
            crud.create("user", "2", {}),
            crud.delete("user", "2"),
            crud.update("user", "1", {"mail": None}),
        ]
    )
    assert outcome(log) == ({("user", "1"): (3, {"name": "Ann", "age": 4})}, [])


@pytest.mark.req("CKQ-01")
@pytest.mark.parametrize(
    ("draft", "code"),
    [
        (crud.create("user", "1", {"name": "Eve"}), "CRUD.EXISTS"),
        (crud.update("user", "2", {}), "CRUD.MISSING"),
        (crud.delete("user", "2"), "CRUD.MISSING"),
        (crud.update("user", "1", {"name": "Eve"}, if_rev=2), "CRUD.REV"),
        (crud.create("user", "2", {}, if_rev=1), "CRUD.REV"),
        (crud.delete("user", "1", if_rev=0), "CRUD.REV"),
    ],
)
def test_what_breaks_a_rule_changes_nothing_and_is_reported(draft, code):
    log = FakeLog()
    log.extend([crud.create("user", "1", {"name": "Ann"}), draft])
    assert outcome(log) == ({("user", "1"): (1, {"name": "Ann"})}, [(2, code)])


def test_of_two_writers_who_saw_the_same_revision_the_first_wins():
    log = FakeLog()
    log.extend(
        [
            crud.create("doc", "1", {"text": "a"}, if_rev=0),
            crud.update("doc", "1", {"text": "b"}, if_rev=1),
            crud.update("doc", "1", {"text": "c"}, if_rev=1),
        ]
    )
    assert outcome(log) == ({("doc", "1"): (2, {"text": "b"})}, [(3, "CRUD.REV")])


def test_revisions_never_repeat_also_over_a_deletion():
    log = FakeLog()
    log.extend([crud.create("doc", "1", {}), crud.delete("doc", "1"), crud.create("doc", "1", {}, if_rev=2)])
    assert outcome(log) == ({("doc", "1"): (3, {})}, [])


def test_a_record_expires_with_the_message_that_wrote_it_last():
    log = FakeLog()
    draft = crud.create("doc", "1", {})
    log.append(Draft(schema=draft.schema, body=draft.body, expires_at=1_100))
    assert outcome(log, as_of=1_100)[0] != {}
    assert outcome(log, as_of=1_101)[0] == {}
