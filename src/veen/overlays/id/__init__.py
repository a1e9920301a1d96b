"""ID: principals, devices, contexts, organizations, handles and external links, as a fold (001 ID v0.0.1).

Identity without a server that must be asked: everything here is a function of the log and of tokens that principals
signed. Import from the modules; docs/overlays-id.md tells how they fit together.
"""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.overlays.id import drafts
    from veen.overlays.id.auth import MessageFacts, RoleNeed, authenticate
    from veen.overlays.id.delegation import NewKey, delegate, rotate_device
    from veen.overlays.id.fold import IdFold
    from veen.overlays.id.ids import ctx_id_of, device_id_of, group_id_of, org_id_of, principal_id_of, realm_id_of

__all__ = [
    "IdFold",
    "MessageFacts",
    "NewKey",
    "RoleNeed",
    "authenticate",
    "ctx_id_of",
    "delegate",
    "device_id_of",
    "drafts",
    "group_id_of",
    "org_id_of",
    "principal_id_of",
    "realm_id_of",
    "rotate_device",
]

__getattr__ = names_of(
    __name__,
    {
        "IdFold": "veen.overlays.id.fold:IdFold",
        "MessageFacts": "veen.overlays.id.auth:MessageFacts",
        "NewKey": "veen.overlays.id.delegation:NewKey",
        "RoleNeed": "veen.overlays.id.auth:RoleNeed",
        "authenticate": "veen.overlays.id.auth:authenticate",
        "ctx_id_of": "veen.overlays.id.ids:ctx_id_of",
        "delegate": "veen.overlays.id.delegation:delegate",
        "device_id_of": "veen.overlays.id.ids:device_id_of",
        "drafts": "veen.overlays.id.drafts:",
        "group_id_of": "veen.overlays.id.ids:group_id_of",
        "org_id_of": "veen.overlays.id.ids:org_id_of",
        "principal_id_of": "veen.overlays.id.ids:principal_id_of",
        "realm_id_of": "veen.overlays.id.ids:realm_id_of",
        "rotate_device": "veen.overlays.id.delegation:rotate_device",
    },
)
