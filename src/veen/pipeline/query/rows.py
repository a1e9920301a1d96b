"""Selection: which records a query takes, and what a row shows of each (QRY-07, QRY-13). Pure."""

from veen.pipeline.query.canonical import Json
from veen.pipeline.query.descriptor import Filter, QueryDescriptor
from veen.pipeline.query.fields import Record

__all__ = ["project", "takes"]


def takes(chosen: Filter, found: Record) -> bool:
    """Whether the record fits the filter."""
    return (
        chosen.takes_time(found.hub_ts)
        and (chosen.subject_id is None or chosen.subject_id == found.body.subject_id)
        and (chosen.event_type is None or found.body.event_type in chosen.event_type)
    )


def project(descriptor: QueryDescriptor, found: Record) -> dict[str, Json]:
    """One ResultRow: every projected field under its own name, null where the record has nothing."""
    return {field.name: field.value(found) for field in descriptor.projection}
