"""First contact with a hub: a person confirms its key once; a script must have a pin."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession


@dataclass(frozen=True, slots=True)
class HubClaim:
    """Keys that a hub claims to have, unverified."""

    hub_id: str
    first_pk: str  # fixes hub_id; later keys are introduced by it, so this is the one to pin
    current_pk: str


TRUST_FIRST_USE: Final = "VEEN_TRUST_ON_FIRST_USE"
FIRST_USE_OPTION: Final = click.option(
    "--trust-on-first-use",
    is_flag=True,
    envvar=TRUST_FIRST_USE,
    help=f"Without a pin, believe the key that the hub shows first, and remember it. [{TRUST_FIRST_USE}]",
)
_FIRST_USES: Final = "first-use.json"  # URL -> the key that was believed


def say_trusted(output: Output, url: str, key: str, ground: str) -> None:
    """Print which key of a hub is trusted, and why; also with --quiet."""
    output.notice(f"{key} is trusted as the key of {url}: {ground}", hub=url, hub_pk=key, ground=ground)


def first_use(
    output: Output,
    state: Path,
    url: str,
    *,
    ca_file: Path | None = None,
    token_file: Path | None = None,
    insecure_http: bool = False,
    seconds: float = 0,
) -> str:
    """Return the key of a hub that was trusted at its first use, now or earlier; another one is refused later."""
    from veen.client.errors import NetworkError
    from veen.client.home import PrivateFs

    fs = PrivateFs(state)
    path = fs.root / _FIRST_USES
    keys: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if url in keys:
        say_trusted(output, url, keys[url], "it was the key at the first use from here")
        return keys[url]
    until, claim = time.monotonic() + seconds, None
    while claim is None:
        try:
            claim = read_claim(url, ca_file, token_file, insecure_http=insecure_http)
        except NetworkError:
            if time.monotonic() >= until:
                raise
            time.sleep(1)
    fs.replace(_FIRST_USES, json.dumps({**keys, url: claim.first_pk}, sort_keys=True).encode() + b"\n")
    say_trusted(output, url, claim.first_pk, "first use, and nobody has confirmed it")
    return claim.first_pk


def read_claim(url: str, ca_file: Path | None, token_file: Path | None, *, insecure_http: bool = False) -> HubClaim:
    """Return the identity that a hub claims. Raise Fail if it contradicts itself."""
    from veen.client.transport.hubapi import HubApi
    from veen.core.errors import SignatureError, VerifyError

    with HubApi(url, ca_file=ca_file, token_file=token_file, insecure_http=insecure_http) as hub:
        answer = hub.identity()
    try:
        identity = answer.to_identity()
        identity.verify(answer.sig)
    except SignatureError as exc:
        raise Fail(
            "E.DIVERGED.FOREIGN_KEY",
            f"{url}: its identity is not signed by the newest key that it lists",
            "a root key signs an ephemeral hub, and the hub cannot prove it; any other hub signs its own identity",
            "ask its operator for the root key, then run: veen context add NAME --hub URL --pin root:ed25519:HEX",
        ) from exc
    except VerifyError as exc:
        raise Fail(
            "E.DIVERGED.FOREIGN_KEY",
            f"{url}: contradicts itself",
            str(exc),
            "do not use this hub before its operator has explained it",
        ) from exc
    first, current = identity.keys[0].hub_pk, identity.current.hub_pk
    return HubClaim(identity.hub_id.hex(), f"ed25519:{first.hex()}", f"ed25519:{current.hex()}")


def ask(output: Output, url: str, claim: HubClaim) -> bool:
    """Show the claim of the hub, and let a person decide."""
    output.say(f"No key of {url} is known here. It says that it is")
    output.say(f"  hub_id  {claim.hub_id}")
    output.say(f"  hub_pk  {claim.first_pk}")
    if claim.current_pk != claim.first_pk:
        output.say(f"  and signs with  {claim.current_pk}")
    output.say("Compare this with what its operator published: whoever answers now would be believed.")
    return click.confirm("Is this the hub?", default=False, err=True)


def first_contact(session: "CliSession") -> str:
    """Return the key to pin, after storing it in the context if there is one."""
    url = session.hub_url
    if not session.output.may_ask:
        raise not_pinned(url)
    settings = session.settings
    insecure = bool(settings.insecure_http.value)
    claim = read_claim(url, settings.path("ca_file"), settings.path("token_file"), insecure_http=insecure)
    if not ask(session.output, url, claim):
        raise not_pinned(url)
    name = settings.context.value
    if name is not None:
        from veen.client.config.edit import change

        table = {"hub": url, "hub_pk": claim.first_pk, "hub_id": claim.hub_id}
        change(session.user_home.config_file, {f"context.{name}.{key}": value for key, value in table.items()})
    else:
        session.output.note(f"to remember it: veen context add NAME --hub {url} --pin {claim.first_pk}")
    return claim.first_pk


def not_pinned(url: str) -> Fail:
    return Fail(
        "E.LOCAL.PIN",
        f"{url}: no key of this hub is known",
        "without a pinned key no signature of it can be verified",
        f"ask its operator for hub_pk, then run: veen context add NAME --hub {url} --pin ed25519:HEX;"
        f" in a container: VEEN_PIN, VEEN_PIN_FILE, or {TRUST_FIRST_USE}=1",
    )
