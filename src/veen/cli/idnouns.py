"""The nouns of the identity overlay under `veen id`: one group each, with add, show, list and revoke (ID v0.0.1)."""

from collections.abc import Mapping
from typing import ClassVar, Final

import click

from veen.cli.lazy import LazyGroup, Table

__all__ = ["NOUNS", "context", "device", "external", "group", "handle", "org", "principal", "role"]

NOUNS: Final[Mapping[str, Mapping[str, str]]] = {
    "principal": {
        "add": "Record a principal: a root identity.",
        "list": "The principals that the log knows.",
        "revoke": "A principal takes back a token that it gave.",
        "show": "One principal.",
    },
    "device": {
        "add": "Record a device: a key that may act for a principal.",
        "list": "The devices, and whether they may act.",
        "revoke": "Take a device back, for good.",
        "show": "One device.",
    },
    "context": {
        "add": "Set the profile of an account in a realm.",
        "list": "The accounts that have a profile.",
        "revoke": "Disable an account in its realm, for good.",
        "show": "One account, and its roles.",
    },
    "org": {
        "add": "Set the profile of an organization.",
        "list": "The organizations.",
        "revoke": "End an organization, for good.",
        "show": "One organization.",
    },
    "group": {
        "add": "Put accounts into a group of an organization.",
        "list": "The groups.",
        "revoke": "Take accounts out of a group.",
        "show": "One group and its members.",
    },
    "role": {
        "add": "Give a role to accounts or groups.",
        "list": "The roles of organizations.",
        "revoke": "An organization takes back all that an account is within it.",
        "show": "Who has a role.",
    },
    "handle": {
        "add": "Let a handle mean an account or an organization.",
        "list": "The handles.",
        "revoke": "Let a handle mean nobody.",
        "show": "One handle.",
    },
    "external": {
        "add": "Link an account elsewhere to one here.",
        "list": "The links to accounts elsewhere.",
        "revoke": "End a link.",
        "show": "One link, by provider and subject.",
    },
}


_WRITES: Final = {
    **dict.fromkeys(("principal", "device", "context"), "veen.cli.idpeople"),
    **dict.fromkeys(("org", "group", "role"), "veen.cli.idorgs"),
    **dict.fromkeys(("handle", "external"), "veen.cli.idnames"),
}


def _table(noun: str) -> Table:
    modules = {"list": "veen.cli.idviews", "show": "veen.cli.idviews"}
    return {verb: (f"{modules.get(verb, _WRITES[noun])}:{noun}_{verb}", text) for verb, text in NOUNS[noun].items()}


class _PrincipalGroup(LazyGroup):
    table: ClassVar[Table] = _table("principal")


class _DeviceGroup(LazyGroup):
    table: ClassVar[Table] = _table("device")


class _ContextGroup(LazyGroup):
    table: ClassVar[Table] = _table("context")


class _OrgGroup(LazyGroup):
    table: ClassVar[Table] = _table("org")


class _GroupGroup(LazyGroup):
    table: ClassVar[Table] = _table("group")


class _RoleGroup(LazyGroup):
    table: ClassVar[Table] = _table("role")


class _HandleGroup(LazyGroup):
    table: ClassVar[Table] = _table("handle")


class _ExternalGroup(LazyGroup):
    table: ClassVar[Table] = _table("external")


@click.group(cls=_PrincipalGroup)
def principal() -> None:
    """Principals: root identities. Yours is the long-term key of your identity (id_sign_pk)."""


@click.group(cls=_DeviceGroup)
def device() -> None:
    """Devices: keys that act for a principal. Yours is the client key of your identity."""


@click.group(cls=_ContextGroup)
def context() -> None:
    """Accounts: a principal in a realm. In another realm it has another one, and nobody sees that they are the same."""


@click.group(cls=_OrgGroup)
def org() -> None:
    """Organizations. One is an identity of its own: its org_id comes from its long-term key."""


@click.group(cls=_GroupGroup)
def group() -> None:
    """Groups of accounts within an organization."""


@click.group(cls=_RoleGroup)
def role() -> None:
    """Roles that an organization gives to accounts and groups."""


@click.group(cls=_HandleGroup)
def handle() -> None:
    """Handles: names of a realm for accounts and organizations."""


@click.group(cls=_ExternalGroup)
def external() -> None:
    """Links between accounts elsewhere and accounts here. Readers say whose links they believe."""
