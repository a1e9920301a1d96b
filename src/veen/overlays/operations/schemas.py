"""All schemas of the operation profiles, and those that a delegated execution may embed."""

from typing import Final

from veen.overlays.framework.schema import SchemaSet
from veen.overlays.operations.access import GRANT, REVOKE
from veen.overlays.operations.agreement import CONFIRMATION, DEFINITION
from veen.overlays.operations.delegation import DELEGATED
from veen.overlays.operations.mirror import MIRROR
from veen.overlays.operations.paid import PAID
from veen.overlays.operations.publication import PUBLICATION
from veen.overlays.operations.queryaudit import QUERY_AUDIT
from veen.overlays.operations.recovery import APPROVAL, EXECUTION, REQUEST

# Folds that take them directly take them embedded too; query audits and mirror records are statements of one key.
EMBEDDABLE: Final = SchemaSet(
    [PAID, GRANT, REVOKE, DEFINITION, CONFIRMATION, PUBLICATION, REQUEST, APPROVAL, EXECUTION]
)
ALL: Final = EMBEDDABLE | SchemaSet([DELEGATED, QUERY_AUDIT, MIRROR])
