"""Requests and responses of the tooling API, in the style of the data plane (D-61). They are our additions.

Maps have integer keys in CBOR and names in JSON; unknown keys are refused, optional fields are omitted. Requests
that carry a wire object as their whole body (a cap_token, an equivocation) need no envelope and have none.
"""

from veen.core.objects.tooling.about import (
    HealthResponse,
    HubKey,
    IdentityResponse,
    ReadyResponse,
    RotateKeyRequest,
    StatusResponse,
    VersionResponse,
)
from veen.core.objects.tooling.anchors import AnchoredCheckpoint, AnchorRequest, AnchorResponse, AnchorsResponse
from veen.core.objects.tooling.base import (
    MAX_BATCH_ITEMS,
    MAX_LISTED,
    MAX_WAIT_SEC,
    LabelRequest,
    OkResponse,
    VersionRequest,
)
from veen.core.objects.tooling.capabilities import (
    AttachmentGrant,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    DeriveRequest,
    RecordResponse,
    StreamRegisterRequest,
    StreamsResponse,
)
from veen.core.objects.tooling.cursors import ClientCursorRequest, ClientCursorResponse
from veen.core.objects.tooling.policies import PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.core.objects.tooling.proofs import (
    CheckpointRangeRequest,
    ConsistencyRequest,
    ConsistencyResponse,
    ProofAtRequest,
)
from veen.core.objects.tooling.reading import InspectRequest, InspectResponse, LabelInfo, LegacyItem, TailRequest
from veen.core.objects.tooling.replication import (
    AttachedEntry,
    AttachmentsRequest,
    AttachmentsResponse,
    FeedRequest,
    FeedResponse,
    StoredAttachment,
)

__all__ = [
    "MAX_BATCH_ITEMS",
    "MAX_LISTED",
    "MAX_WAIT_SEC",
    "AnchorRequest",
    "AnchorResponse",
    "AnchoredCheckpoint",
    "AnchorsResponse",
    "AttachedEntry",
    "AttachmentGrant",
    "AttachmentsRequest",
    "AttachmentsResponse",
    "AuthorizeResponse",
    "CapStatusRequest",
    "CapStatusResponse",
    "CheckpointRangeRequest",
    "ClientCursorRequest",
    "ClientCursorResponse",
    "ConsistencyRequest",
    "ConsistencyResponse",
    "DeriveRequest",
    "FeedRequest",
    "FeedResponse",
    "HealthResponse",
    "HubKey",
    "IdentityResponse",
    "InspectRequest",
    "InspectResponse",
    "LabelInfo",
    "LabelRequest",
    "LegacyItem",
    "OkResponse",
    "PolicyRecordsResponse",
    "PolicyRequest",
    "PolicyResponse",
    "ProofAtRequest",
    "ReadyResponse",
    "RecordResponse",
    "RotateKeyRequest",
    "StatusResponse",
    "StoredAttachment",
    "StreamRegisterRequest",
    "StreamsResponse",
    "TailRequest",
    "VersionRequest",
    "VersionResponse",
]
