"""Hub keys to verify a directory by: those of `--pin`, of the context, or only those in the directory itself.

Check of a pin against the hub at its URL, when a context is added, if the hub answers.

First contact with a hub: a person confirms its key once; a script must have a pin.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared import options
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.core.objects.identity import HubIdentity
    from veen.core.objects.trusted_root import TrustedKeys
    from veen.core.verdict import Reason


@dataclass(frozen=True, slots=True)
class PinnedKeys:
    """The trusted keys and their origin. Without keys the directory's own are trusted."""

    keys: "TrustedKeys | None"
    origin: str
    is_given: bool = True  # by an option of this command; False: by the context in use, which may be another hub's

    @property
    def identity(self) -> str | None:
        """Key of the verdict, for its coverage."""
        return None if self.keys is None else self.keys.to_text()

    def reason(self, fault: str, identity: "HubIdentity | None") -> "Reason":
        """Return the reason of a verdict about a log whose keys do not follow from the pinned key.

        The evidence is bad if the pin was given for this log, or if the log claims the pinned key. Otherwise the log
        is that of another hub than the context in use: nobody vouches for its keys, so the verdict is incomplete.
        """
        from veen.core.verdict import Because, Reason

        if self.is_given or self._is_claimed_by(identity):
            return Reason(Because.EVIDENCE, fault)
        return Reason(Because.COVERAGE, f"{fault}; the pin is that of {self.origin}")

    def _is_claimed_by(self, identity: "HubIdentity | None") -> bool:
        if identity is None or self.keys is None:
            return False
        return identity.hub_id == self.keys.hub_id or any(key.hub_pk in self.keys.hub_pks for key in identity.keys)

    def line(self) -> str:
        """Return the first line of a report."""
        if self.keys is None:
            return "keys not pinned: the directory itself says which keys are its hub's, so this may be any hub's log"
        return f"keys pinned: {self.keys.to_text()} ({self.origin})"

    def to_json(self) -> dict[str, Any]:
        return {
            "keys": "not pinned" if self.keys is None else "pinned",
            "pin": None if self.keys is None else self.keys.to_text(),
            "pin_origin": None if self.keys is None else self.origin,
        }


def pin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `pin` and `no_pin`, for `resolve_pin`."""
    decorated = click.option("--no-pin", is_flag=True, help=options.NO_PIN)(command)
    return click.option(
        "--pin",
        metavar="KEY[:HUB_ID]",
        help=f"{options.PIN} Default: that of the context. [VEEN_PIN]",
    )(decorated)


def resolve_pin(session: "CliSession", pin: str | None, no_pin: bool) -> PinnedKeys:
    """Return the trusted keys by the options and the context."""
    from veen.core.objects.trusted_root import TrustedKeys

    if pin is not None and no_pin:
        raise click.UsageError("give one of --pin and --no-pin")
    if no_pin:
        return PinnedKeys(None, "--no-pin")
    if pin is not None:
        try:
            return PinnedKeys(TrustedKeys.parse(pin), "--pin")
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="--pin") from exc
    setting, hub_id = session.settings.hub_pk, session.settings.hub_id.value
    if setting.value is None:
        return PinnedKeys(None, setting.origin)
    return PinnedKeys(
        TrustedKeys.parse(setting.value if hub_id is None else f"{setting.value}:{hub_id}"),
        setting.origin,
        is_given=not session.settings.is_implied("hub_pk"),
    )


PIN_HINT: Final = (
    "compare the key with what the hub's operator published; give the right one by --pin, or none by --no-pin"
)


def bad_directory(code: str, what: str, cause: str, hint: str) -> Fail:
    """Return the end of a command by a finding in a directory. A finding about the pin has its own code and hint."""
    if code == "pin":
        return Fail("E.VERIFY.PIN", what, cause, PIN_HINT)
    return Fail("E.VERIFY", what, cause, hint)


_SECONDS: Final = 5.0


def check_pin(url: str, pin: str, ca_file: Path | None, token_file: Path | None, *, insecure_http: bool) -> str:
    """Return "the hub has this key", or the reason why it was not checked. Raise Fail if the hub has other keys.

    This is no proof: later signatures of the hub must verify under the pin. It catches a mistyped key before it is
    saved.
    """
    from veen.client.errors import ClientError
    from veen.client.transport.hubapi import HubApi
    from veen.core.errors import SignatureError, VerifyError
    from veen.core.objects.trusted_root import PinnedKey

    pinned = PinnedKey.parse(pin)
    try:
        with HubApi(url, ca_file=ca_file, token_file=token_file, insecure_http=insecure_http, timeout=_SECONDS) as hub:
            answer = hub.identity()
    except ClientError as exc:
        return f"not checked: {exc}"
    try:
        identity = answer.to_identity()
        identity.verify(answer.sig, pinned.public if pinned.is_root else None)
        matches = pinned.is_root or pinned.public in [key.hub_pk for key in identity.keys]
    except SignatureError:
        matches = False
    except VerifyError as exc:
        raise _other_key(url, f"it contradicts itself: {exc}") from exc
    if not matches:
        raise _other_key(url, "none of the keys that it names is the pinned one")
    return "the hub has this key"


def _other_key(url: str, cause: str) -> Fail:
    return Fail(
        "E.LOCAL.PIN",
        f"{url}: the hub does not have this key; nothing was saved",
        cause,
        "compare the key with what its operator published; --no-check saves it without a check",
    )


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
        from veen.client.config.projects import change

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
