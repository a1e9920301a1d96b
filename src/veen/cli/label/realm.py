"""What the commands about the administration of a realm share: which realm, and on which streams."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

from veen.cli.shared.overlay_values import HEX32

F = TypeVar("F", bound=Callable[..., Any])

MAKE_KEYS: Final = click.option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the realm's stream, if there are none."
)


class AdminRealm:
    """A realm, and who may speak for it."""

    def __init__(self, name: str, emitters: tuple[bytes, ...]) -> None:
        self.name, self._emitters = name, emitters

    @property
    def realm_id(self) -> bytes:
        from veen.core.objects.policies import realm_id_of

        return realm_id_of(self.name)

    @property
    def emitters(self) -> tuple[bytes, ...] | None:
        """None: everyone who may write to the stream."""
        return self._emitters or None

    def class_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).label_class.hex()}"

    def authority_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).fed_admin.hex()}"

    def revocation_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).revocation.hex()}"

    def schema_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).schema_meta.hex()}"


def realm_options(command: F) -> F:
    """Give a command its `realm`."""

    @click.option("--realm", "realm_name", default="default", show_default=True, help="The realm.")
    @click.option(
        "--emitter",
        "emitters",
        type=HEX32,
        multiple=True,
        help="A client_id that may speak for the realm. Repeatable; default: everyone who may write to the stream.",
    )
    @wraps(command)
    def run(*args: Any, realm_name: str, emitters: tuple[bytes, ...], **kwargs: Any) -> Any:
        return command(*args, realm=AdminRealm(realm_name, emitters), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
