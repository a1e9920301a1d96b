"""The levels of ID that an implementation may claim (001 ID §14)."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from veen.overlays.framework.schema import SchemaSet
from veen.overlays.id import bodies


class ComplianceLevel(Enum):
    CORE = "ID v0.0.1 Core"
    ORGS = "ID v0.0.1 Orgs"
    HANDLES = "ID v0.0.1 Handles"
    EXTERNAL = "ID v0.0.1 External"
    BRIDGE = "ID v0.0.1 Bridge"


class Feature(Enum):
    """Features that a level requires besides schemas. A deployment has those that it runs."""

    DERIVATION = "realm_id and ctx_id"
    AUTHENTICATION = "delegation and the authentication path"
    RESOLUTION = "resolve by handle"
    GATEWAY = "a gateway for an external provider"
    MIRRORING = "identity streams mirrored between hubs"


# What each level adds. All but Core need Core as well.
NEEDS: Final[Mapping[ComplianceLevel, tuple[SchemaSet, frozenset[Feature]]]] = {
    ComplianceLevel.CORE: (
        SchemaSet([bodies.CTX_PROFILE, bodies.DEVICE]),
        frozenset((Feature.DERIVATION, Feature.AUTHENTICATION)),
    ),
    ComplianceLevel.ORGS: (SchemaSet([bodies.ORG_PROFILE, bodies.GROUP, bodies.ROLE_BINDING]), frozenset()),
    ComplianceLevel.HANDLES: (SchemaSet([bodies.HANDLE_MAP]), frozenset((Feature.RESOLUTION,))),
    ComplianceLevel.EXTERNAL: (SchemaSet([bodies.EXTERNAL_LINK]), frozenset((Feature.GATEWAY,))),
    ComplianceLevel.BRIDGE: (SchemaSet(), frozenset((Feature.MIRRORING,))),
}


def claimable(schemas: Collection[bytes], features: Collection[Feature]) -> tuple[ComplianceLevel, ...]:
    """Return the levels that an implementation with these schemas and features may claim."""
    met = [level for level, (need, also) in NEEDS.items() if set(need) <= set(schemas) and also <= set(features)]
    return tuple(met) if ComplianceLevel.CORE in met else ()
