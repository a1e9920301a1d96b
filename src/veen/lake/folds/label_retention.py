"""Periods of retention that label classes advise, for the operator who erases payloads (LCLASS0, D-103, D-127).

A hub cannot read classes, so whoever has the read key of the realm's stream of classes reads them in the directory of
the hub. A hint counts for the label that it names and, where labels rotate, for the other labels of its stream.
"""

from veen.client.identity.keyring import Keyring
from veen.lake.folds import run
from veen.lake.log.prefix import make_prefix
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.overlays.naming.label_class import LabelClasses, LabelClassFold


def read_periods(uri: str, ring: Keyring) -> dict[bytes, int]:
    """Return the retention in seconds that the class of each label advises.

    Raise UnknownStream without the read key of the stream of classes.
    """
    stream_id = admin_streams(DEFAULT_REALM).label_class
    ring.for_stream(stream_id).secret()
    classes: LabelClasses = run(uri, LabelClassFold(), keys=ring, streams=[stream_id]).view
    streams = {keys.stream_id for keys in ring.entries}
    stream_of, classified = {}, dict[bytes, list[bytes]]()
    for part in make_prefix(uri, roots=False).labels:
        resolved = part.stream.match_stream(streams)
        stream_of[part.label] = None if resolved is None else resolved.stream_id
        if resolved is not None and resolved.stream_id is not None and part.label in classes.labels:
            classified.setdefault(resolved.stream_id, []).append(part.label)
    periods = {}
    for label, stream in stream_of.items():
        advice = classes.advice(label, () if stream is None else classified.get(stream, ()))
        if advice.retention_sec:
            periods[label] = advice.retention_sec
    return periods
