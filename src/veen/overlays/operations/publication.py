"""data.publication.v1: a content item bound to a point in the log (001 spec-3 §6, D-93, D-157).

The first publication of (publication_id, version) counts, and whoever published first owns the id: versions by others
are refused. Which of several versions a reader takes is his choice (`Publications.current`).

    PUB.VERSION    version or content_class is empty
    PUB.SPEAKER    the sender does not speak for publisher_identity (D-179)
    PUB.DUPLICATE  this version was published before (P1)
    PUB.OWNER      another identity publishes under this publication_id
    PUB.ROOT       an artefact does not have the content_root of the publication
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from veen.core.event import Event, Order
from veen.core.wire import Anything, Bytes32, Length
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Violation
from veen.overlays.framework.speaking import SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import Free, state_record
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import MAX_LIST, Operation
from veen.overlays.operations.delegation import DELEGATED, Act, ActingFold

Survivorship = Literal["latest", "highest"]
_SEMANTIC: Final = re.compile(r"v?(\d{1,18})\.(\d{1,18})\.(\d{1,18})(-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPublication(Operation, kind="data.publication.v1"):
    """A version of published content, with its root."""

    publication_id: Bytes32
    publisher_identity: Bytes32
    content_root: Bytes32
    content_class: str
    version: str
    labels: Annotated[tuple[str, ...], Length(0, MAX_LIST)] | None = None
    source_uri: str | None = None
    metadata: Anything | None = None  # `content_form` in it says how content_root was made (D-157)

    def _check(self) -> None:
        if not self.version or not self.content_class:
            raise InvalidBody("PUB.VERSION", "version and content_class must not be empty")


PUBLICATION: Final = Schema(DataPublication.KIND, DataPublication)


def publish(
    publication_id: bytes,
    publisher: bytes,
    *,
    content_root: bytes,
    content_form: str,
    content_class: str,
    version: str,
    labels: Iterable[str] | None = None,
    source_uri: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    body = DataPublication(
        publication_id=publication_id,
        publisher_identity=publisher,
        content_root=content_root,
        content_class=content_class,
        version=version,
        labels=None if labels is None else tuple(labels),
        source_uri=source_uri,
        metadata={**(metadata or {}), "content_form": content_form},
    )
    return PUBLICATION.draft(body)


@state_record
class Published:
    """A version of a publication, with its message."""

    operation_id: bytes
    msg_id: bytes
    label: bytes
    stream_seq: int
    order: Order
    publisher: bytes
    content_root: bytes
    content_class: str
    labels: tuple[str, ...]
    source_uri: str | None = None
    metadata: Free | None = None
    hub_ts: int


def check_content(published: Published, content_root: bytes) -> None:
    """Raise Violation unless an artefact with this root is the published one (§6.3). The caller checks the receipt."""
    if content_root != published.content_root:
        raise Violation(
            "PUB.ROOT",
            f"the content has the root {content_root.hex()}, the publication {published.content_root.hex()}",
        )


@dataclass(frozen=True, slots=True)
class Publications:
    """Valid versions by (publication_id, version)."""

    versions: Mapping[tuple[bytes, str], Published]

    def current(self, publication_id: bytes, rule: Survivorship = "latest") -> tuple[str, Published] | None:
        """Return the surviving version (P2): the latest in logical order, or the highest by semantic versioning."""
        versions = [
            (version, published)
            for (known_id, version), published in self.versions.items()
            if known_id == publication_id
        ]
        if rule == "latest":
            return max(versions, key=lambda pair: pair[1].order, default=None)
        return max(versions, key=lambda pair: (_rank(pair[0]), pair[1].order), default=None)


def _rank(version: str) -> tuple[Any, ...]:
    """Return the sort key of a semantic version. Other texts precede versions; a pre-release precedes its release."""
    match = _SEMANTIC.fullmatch(version)
    if match is None:
        return (0,)
    *numbers, pre = match.groups()
    parts = () if pre is None else tuple(_part(part) for part in pre[1:].split("."))
    return (1, *(int(number) for number in numbers), pre is None, parts)


def _part(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isdigit() and len(text) <= 18 else (1, 0, text)


@state_record
class Owner:
    """The first publisher under an id."""

    owner: bytes


_Key = tuple[str, bytes, str]
_Record = Published | Owner


class PublicationFold(ActingFold[_Key, _Record, Publications]):
    """Fold of publications, each version once."""

    name = "operation.publication"
    schemas = SchemaSet([PUBLICATION, DELEGATED])
    TABLE = dict[_Key | SpeakingKey, _Record | SpeakingRecord]

    def act(self, state: Table[_Key, _Record], act: Act[DataPublication]) -> None:
        e, body = act.event, act.body
        act.check_speaker(body.publisher_identity, "PUB.SPEAKER", "publisher_identity")
        owner = state.get(("owner", body.publication_id, ""))
        if isinstance(owner, Owner) and not self._is_same(state, e, owner.owner, body.publisher_identity):
            raise Violation("PUB.OWNER", f"the id belongs to {owner.owner.hex()}, who published under it first")
        key = ("version", body.publication_id, body.version)
        if key in state:
            raise Violation("PUB.DUPLICATE", f"version {body.version} was published before")
        state["owner", body.publication_id, ""] = Owner(owner=body.publisher_identity)
        state[key] = Published(
            operation_id=act.operation_id,
            msg_id=act.msg_id,
            label=e.label,
            stream_seq=e.stream_seq,
            order=e.order,
            publisher=body.publisher_identity,
            content_root=body.content_root,
            content_class=body.content_class,
            labels=body.labels or (),
            source_uri=body.source_uri,
            metadata=None if body.metadata is None else Free(body.metadata),
            hub_ts=e.hub_ts,
        )

    def _is_same(self, state: Table[_Key, _Record], event: Event, owner: bytes, publisher: bytes) -> bool:
        """Return True if the publisher is the owner, or a principal with that name."""
        return owner == publisher or owner in self.voice_of(state, event.stream_id, publisher)

    def show(self, state: Table[_Key, _Record], as_of: int) -> Publications:
        ordered = sorted(self.records(state), key=lambda item: item[0])
        return Publications(
            {(key[1], key[2]): published for key, published in ordered if isinstance(published, Published)}
        )


STATES: Final = (
    StateTable.of(
        PublicationFold.name,
        Published,
        {"publication_id": "hex", "version": "text"},
        lambda view: view.versions,
        about="publications by version",
        times=("hub_ts",),
    ),
)
