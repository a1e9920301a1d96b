"""`veen connect`: from a method name to a pinned connection, in four phases (001 spec-5 §7, docs/discovery.md)."""

import json
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.disc.sources import DiscoverySource, discovery_options, fold_directory
from veen.cli.lazy import LazyGroup
from veen.cli.shared.as_of import View
from veen.cli.shared.authority import CAP, authority, read_token, token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core.objects.captoken import CapToken
    from veen.overlays.discovery.bodies import HubAdvert, IssuancePlace, ServiceAdvert
    from veen.overlays.discovery.connect import ConnectPlan, ConnectWish

F = TypeVar("F", bound=Callable[..., Any])

connect = LazyGroup("connect", help="Find a service in the directory and connect to it, pinning its hub's key first.")
_NOW: Final = View(None, keep=True)


def _wish_options(command: F) -> F:
    @click.option("--method", help="Method that the service must offer.")
    @click.option("--service", help="Name of the service.")
    @click.option("--overlay", default="rpc", show_default=True, help="Name of the overlay to use.")
    @click.option("--region", help="Preferred region.")
    @click.option("--tag", "tags", multiple=True, help="Tag of the service; one match is enough. Repeatable.")
    @wraps(command)
    def run(
        output: Output,
        session: CliSession,
        *args: Any,
        method: str | None,
        service: str | None,
        overlay: str,
        region: str | None,
        tags: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        wish = _wish(session, overlay, method=method, service=service, region=region, tags=frozenset(tags))
        return command(output, session, *args, wish=wish, **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def _wish(session: CliSession, overlay: str, **fields: Any) -> "ConnectWish":
    from veen.client.config.file import read
    from veen.core.objects.profile import PRESETS
    from veen.core.objects.trusted_root import PinnedKey
    from veen.overlays.discovery.bodies import overlay_id_of
    from veen.overlays.discovery.connect import ConnectWish
    from veen.overlays.framework.registry import BUILTIN

    if overlay not in BUILTIN:
        raise click.UsageError(f"the overlay {overlay!r} is not spoken here; there are {', '.join(sorted(BUILTIN))}")
    contexts = read(session.user_home.config_file).contexts.values()
    pins = [PinnedKey.parse(context["hub_pk"]) for context in contexts if "hub_pk" in context]
    return ConnectWish(
        overlay_id=overlay_id_of(overlay),
        schemas=frozenset(schema.id for schema in BUILTIN[overlay].schemas),
        profiles=frozenset(profile.profile_id() for profile in PRESETS.values()),
        pinned=frozenset(pin.public for pin in pins if not pin.is_root),
        **fields,
    )


def _hub_row(hub: "HubAdvert", wish: "ConnectWish") -> dict[str, Any]:
    from veen.overlays.discovery.connect import usable_url

    return {
        "hub_id": hub.hub_id.hex(),
        "hub_pk": f"ed25519:{hub.hub_pk.hex()}",
        "url": usable_url(hub),
        "region": hub.region,
        "pinned": hub.hub_pk in wish.pinned,
        "rotated": hub.is_rotated,
        "overlay": wish.overlay_id in hub.overlays,
    }


def _service_row(service: "ServiceAdvert") -> dict[str, Any]:
    streams = [f"hex:{stream_id.hex()}" for stream_id in service.stream_ids]
    return {
        "service_id": service.service_id.hex(),
        "name": service.name,
        "methods": list(service.methods),
        "requests": streams[0],
        "replies": streams[1] if len(streams) > 1 else streams[0],
        "regions": list(service.regions),
        "required_caps": list(service.required_caps),
        "auth": None if service.auth_policy is None else service.auth_policy.mode,
    }


def _plan(session: CliSession, wish: "ConnectWish", source: DiscoverySource) -> "ConnectPlan":
    from veen.overlays.discovery.connect import plan_connection

    return plan_connection(fold_directory(session, source, _NOW).state, wish)


def _request(session: CliSession, outline: "ConnectPlan") -> dict[str, Any] | None:
    """Return phase 3: the token request to the operator of the service."""
    service = outline.service
    if service is None or not outline.needs_token:
        return None
    identity = session.keystore.identity
    return {
        "subject": identity.client_id.hex(),
        "streams": [f"hex:{stream_id.hex()}" for stream_id in service.stream_ids],
        "required_caps": list(service.required_caps),
        "operator": None if service.operator is None else {"org": service.operator.org},
    }


@connect.verb("plan", "Which hub, service, token and streams to use, and why not others.")
@discovery_options
@client_options
@_wish_options
def plan(output: Output, session: CliSession, wish: "ConnectWish", source: DiscoverySource) -> None:
    """Fold the directory and print a plan; nothing is changed, and only the hub of the directory is asked.

    Phase 1 ranks hubs: pinned ones first, then by region, overlay and id. Phase 2 takes services over an overlay whose
    schemas are those spoken here. Phase 3 says which token to ask for, phase 4 which streams to use.

    \b
    veen connect plan --method add --region north
    """
    result = _plan(session, wish, source)
    data: dict[str, Any] = {
        "hubs": [_hub_row(hub, wish) for hub in result.hubs],
        "services": [_service_row(service) for service in result.services],
        "token_request": _request(session, result),
        "excluded": [{"kind": out.kind, "id": out.id.hex(), "reason": out.reason} for out in result.excluded],
    }

    def human() -> None:
        output.table(
            ("hub", "url", "region", "pinned"),
            [(h["hub_id"], h["url"], h["region"], h["pinned"]) for h in data["hubs"]],
        )
        output.table(
            ("service", "name", "requests"), [(s["service_id"], s["name"], s["requests"]) for s in data["services"]]
        )
        for out in data["excluded"]:
            output.note(f"{out['kind']} {out['id'][:16]}… is not used: {out['reason']}")

    output.result(data, human)


@connect.verb("apply", "Connect to the best service of the plan, under a context name.")
@click.argument("name")
@click.option("--confirm", help="Key of the hub from another source: ed25519:HEX. Default: ask on the terminal.")
@click.option("--ttl", type=SPAN, help="Requested lifetime of the token. Default: chosen by the issuer.")
@click.option("--timeout", type=SPAN, default="30s", help="Timeout for the issuer's answer. Default: 30s.")
@CAP
@discovery_options
@client_options
@_wish_options
def apply(
    output: Output,
    session: CliSession,
    name: str,
    confirm: str | None,
    ttl: int | None,
    timeout: int,
    cap: Path | None,
    wish: "ConnectWish",
    source: DiscoverySource,
) -> None:
    """Check the identity of the planned hub, pin its key, write the context NAME, and authorise a token there.

    The token is --cap, or one that you hold and that lasts, or it is asked of the issuer that the service names
    (`cap serve`).

    A hub whose identity has not the advertised key and hub_id is CONNECT.IDENTITY. Its key must be confirmed: by
    --confirm, by a context that pins it already, or by a person. The outcome is kept with the identity's state.

    \b
    veen connect apply calc --method add --confirm ed25519:9f2c… --cap calc.cap
    veen rpc call hex:5d1f… add '[1, 2]' --context calc
    """
    from veen.client.config.projects import change
    from veen.client.home import PrivateFs

    result = _plan(session, wish, source)
    if result.hub is None:
        raise Fail("CONNECT.NO_HUB", "no hub can be used", _why(result, "hub"), "veen connect plan")
    if result.service is None:
        raise Fail("CONNECT.NO_SERVICE", "no service fits", _why(result, "service", "overlay"), "veen connect plan")
    row, service = _hub_row(result.hub, wish), _service_row(result.service)
    token = read_token(cap) if cap is not None else _find_token(session, result)
    place = _issuer(result)
    if result.needs_token and token is None and place is None:
        request = json.dumps(_request(session, result))
        raise Fail("CONNECT.TOKEN", f"{service['name']} asks for a capability token", request, "give --cap FILE")
    pin = _confirm_key(session, row, confirm)
    if result.needs_token and token is None and place is not None:
        token = _request_token(session, output, result.service, place, ttl, timeout)
    session.close()  # the client of the directory gives the identity back
    values = {"hub": row["url"], "hub_pk": pin, "hub_id": row["hub_id"]}
    change(session.user_home.config_file, {f"context.{name}.{key}": value for key, value in values.items()})
    there = session.in_context(name)
    try:
        client = there.client()  # pinned: another key ends it here
        bound: dict[str, Any] = {"auth_ref": None, "expires_at": None}
        if token is not None:
            grant = client.authorize(token)
            store = token_store(there)
            store.put(grant.token)
            store.add_grant(grant.auth_ref, client.hub_id, grant.issued_at)
            bound = {"auth_ref": grant.auth_ref.hex(), "expires_at": grant.expires_at}
    finally:
        there.close()
    data = {"context": name, "url": row["url"], "pin": pin, "hub_id": row["hub_id"], **service, **bound}
    fs = PrivateFs(session.home.state / "connect")
    fs.make_dir("")
    fs.replace(f"{name}.json", json.dumps({**data, "applied_at": int(time.time())}).encode())
    output.result(data)
    output.next(f"veen rpc call {service['requests']} METHOD --context {name}")


def _find_token(session: CliSession, result: "ConnectPlan") -> "CapToken | None":
    """Return a token for the planned service that this hub has authorised and that is not due for renewal."""
    service, hub = result.service, result.hub
    if service is None or hub is None or not result.needs_token:
        return None
    subject_pk, now = session.keystore.identity.client_id, int(time.time())
    for stored in token_store(session).all():
        fits = all(stored.allows(subject_pk, stream_id) for stream_id in service.stream_ids)
        is_known = stored.issued_at(hub.hub_id) is not None
        if fits and is_known and stored.is_live(hub.hub_id, now) and not stored.is_due(hub.hub_id, now):
            return stored.token
    return None


def _issuer(result: "ConnectPlan") -> "IssuancePlace | None":
    from veen.overlays.discovery.bodies import IssuancePlace

    policy = None if result.service is None else result.service.auth_policy
    return None if policy is None else IssuancePlace.of_details(policy.details)


def _request_token(
    session: CliSession, output: Output, service: "ServiceAdvert", place: "IssuancePlace", ttl: int | None, timeout: int
) -> "CapToken":
    """Ask the issuer of a service for a token of the client key in use. Raise CONNECT.TOKEN if it refuses."""
    from veen.client.errors import UnknownStream
    from veen.overlays.rpc.ends import NoAnswer, RpcFailed
    from veen.products.issuance.service import ask_token

    subject_pk, stream = session.keystore.identity.client_id, f"hex:{place.stream_id.hex()}"

    def refuse(why: str) -> Fail:
        return Fail("CONNECT.TOKEN", f"{service.name} asks for a capability token", why, "give --cap FILE")

    async def work(client: "Client") -> "CapToken":
        return await ask_token(
            client, place.stream_id, subject_pk, service.stream_ids, servers=place.servers, ttl=ttl, timeout=timeout
        )

    client = session.client()
    try:
        authority(session, stream, None)
        with output.progress(f"asking {service.name} for a token"):
            return client.run(work)
    except UnknownStream as exc:
        raise refuse(f"you have no keys of its issuer's stream {stream}") from exc
    except (RpcFailed, NoAnswer) as exc:
        raise refuse(f"its issuer: {exc}") from exc


def _why(result: "ConnectPlan", *kinds: str) -> str:
    reasons = [f"{out.kind} {out.id.hex()[:16]}…: {out.reason}" for out in result.excluded if out.kind in kinds]
    return "; ".join(reasons) or "the directory has none"


def _confirm_key(session: CliSession, row: dict[str, Any], confirm: str | None) -> str:
    """Return the key to pin, once the hub has shown the advertised identity and the user has confirmed it."""
    from veen.cli.shared.pinning import ask, read_claim
    from veen.core.objects.trusted_root import PinnedKey

    claim = read_claim(row["url"], session.settings.path("ca_file"), None)
    if claim.hub_id != row["hub_id"] or row["hub_pk"] not in (claim.first_pk, claim.current_pk):
        raise Fail(
            "CONNECT.IDENTITY",
            f"{row['url']} is not the advertised hub",
            f"it has hub_id {claim.hub_id[:16]}… and key {claim.current_pk[:24]}…",
            "ask the publisher of the descriptor",
        )
    if confirm is not None:
        if PinnedKey.parse(confirm).public.hex() not in (claim.first_pk[8:], claim.current_pk[8:]):
            raise Fail(
                "CONNECT.IDENTITY",
                f"{row['url']} has another key than the confirmed one",
                f"it has {claim.first_pk}",
                "use no hub that cannot prove its key",
            )
        return claim.first_pk
    if row["pinned"] or (session.output.may_ask and ask(session.output, row["url"], claim)):
        return claim.first_pk
    raise Fail(
        "CONNECT.PIN", "the key of the hub is not confirmed", f"it claims {claim.first_pk}", "give --confirm KEY"
    )
