"""Lines and counts of a query service, in the forms of a hub's."""

import io
import json
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from veen import __version__
from veen.lake.query.store import ResultStore
from veen.products.queryservice.observe import ResultRetention, ServiceMetrics, line, lines_to

LOG = logging.getLogger("veen.products.queryservice.tests")


def written(level, *calls, begin=True):
    stream = io.StringIO()
    with lines_to(stream, level) as begin_lines:
        if begin:
            begin_lines()
        for call in calls:
            call()
    return [json.loads(text) for text in stream.getvalue().splitlines()]


def test_a_line_is_one_object_with_the_fields_of_a_hub_line():
    (row,) = written("info", lambda: line(LOG, "execute", "completed", result_id="r-1", rows=3))
    assert list(row) == ["ts", "level", "component", "operation", "message", "result_id", "rows"]
    assert (row["level"], row["component"], row["operation"], row["rows"]) == ("info", "query", "execute", 3)


def test_a_level_leaves_out_what_is_below_it():
    rows = written("warning", lambda: line(LOG, "a", "b"), lambda: line(LOG, "c", "d", level=logging.ERROR))
    assert [row["operation"] for row in rows] == ["c"]


def test_a_defect_is_named_by_its_kind_and_not_by_its_values():
    def fail():
        try:
            raise ValueError("the body of an event")
        except ValueError:
            LOG.exception("the execution of %s failed", "r-1")

    (row,) = written("info", fail)
    assert row["message"] == "the execution of r-1 failed: ValueError"


def test_lines_before_the_address_are_kept_until_it_is_said():
    stream = io.StringIO()
    with lines_to(stream, "info") as begin_lines:
        line(LOG, "execute", "early")
        assert stream.getvalue() == ""
        begin_lines()
        line(LOG, "execute", "late")
        assert [json.loads(text)["message"] for text in stream.getvalue().splitlines()] == ["early", "late"]
    assert [row["message"] for row in written("info", lambda: line(LOG, "a", "kept"), begin=False)] == ["kept"]


def test_loggers_are_left_as_they_were():
    before = (logging.getLogger("veen").level, logging.getLogger("veen").propagate, logging.getLogger("veen").handlers)
    written("debug", lambda: None)
    logger = logging.getLogger("veen")
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_counts_are_read_by_prometheus(tmp_path):
    metrics = ServiceMetrics()
    metrics.submitted += 2
    metrics.count_end("cancelled")
    metrics.count_delivery(7)
    metrics.count_refusal("unauthorized")
    metrics.execution.observe(0.3)
    retention = ResultRetention(ResultStore(tmp_path), keep_bytes=1, keep_seconds=1)
    text = metrics.text(1, retention).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    value = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert value["veen_query_submitted_total",] == 2
    assert value["veen_query_cancelled_total",] == 1
    assert value["veen_query_completed_total",] == 0
    assert value["veen_query_running",] == 1
    assert value["veen_query_rows_total",] == 7
    assert value["veen_query_stored_bytes",] == value["veen_query_removed_results_total",] == 0
    assert value["veen_query_refusals_total", "unauthorized"] == 1
    assert value["veen_query_execution_seconds_count",] == 1
    assert value["veen_build_info", __version__] == 1
    assert all(family.documentation for family in families.values())


def test_an_end_that_there_is_not_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        ServiceMetrics().count_end("vanished")
