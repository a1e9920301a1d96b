"""First contact: whose key is it? Asked of a person, once; a script must be told (UX: no silent trust)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.output import Exit, Fail, Output

if TYPE_CHECKING:
    from veen.cli.clictx import Session

__all__ = ["Claim", "ask", "claimed", "first_contact", "not_pinned"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a hub says about itself. Nothing here is proven."""

    hub_id: str
    first_pk: str  # fixes hub_id; later keys are introduced by it, so this is the one to pin
    current_pk: str


def claimed(url: str, ca_file: Path | None, token_file: Path | None) -> Claim:
    from veen.cli.hubclient import HubClient
    from veen.core.labels import hub_id_of
    from veen.core.tooling import IdentityResponse

    told = IdentityResponse.from_json(HubClient(url, ca_file, token_file).get("/tooling/identity"))
    keys = sorted(told.hub_keys, key=lambda key: (key.valid_from, key.hub_pk))
    if hub_id_of(keys[0].hub_pk) != told.hub_id:
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{url}: contradicts itself",
            "its hub_id is not that of its first key",
            "do not use this hub before its operator has explained it",
            "E.DIVERGED.FOREIGN_KEY",
        )
    return Claim(told.hub_id.hex(), f"ed25519:{keys[0].hub_pk.hex()}", f"ed25519:{keys[-1].hub_pk.hex()}")


def ask(output: Output, url: str, claim: Claim) -> bool:
    """Show what the hub claims, and have a person decide."""
    click.echo(f"No key of {url} is known here. It says that it is", err=True)
    click.echo(f"  hub_id  {claim.hub_id}\n  hub_pk  {claim.first_pk}", err=True)
    if claim.current_pk != claim.first_pk:
        click.echo(f"  and signs with  {claim.current_pk}", err=True)
    click.echo("Compare this with what its operator published: whoever answers now would be believed.", err=True)
    return click.confirm("Is this the hub?", default=False, err=True)


def first_contact(session: "Session") -> str:
    """The key to pin, remembered in the context if there is one."""
    url = session.hub_url
    if not session.output.may_ask:
        raise not_pinned(url)
    claim = claimed(url, session.settings.path("ca_file"), session.settings.path("token_file"))
    if not ask(session.output, url, claim):
        raise not_pinned(url)
    name = session.settings.context.value
    if name is not None:
        from veen.cli.configedit import change

        change(session.user_home.config_file, {f"context.{name}.hub": url, f"context.{name}.hub_pk": claim.first_pk})
    else:
        session.output.note(f"to remember it: veen context add NAME --hub {url} --pin {claim.first_pk}")
    return claim.first_pk


def not_pinned(url: str) -> Fail:
    return Fail(
        Exit.LOCAL,
        f"{url}: no key of this hub is known",
        "without a pinned key nothing that it signs can be believed",
        f"ask its operator for hub_pk, then run: veen context add NAME --hub {url} --pin ed25519:HEX",
        "E.LOCAL.PIN",
    )
