"""By which hub keys a directory is judged: those of `--pin`, of the context, or only those that it names itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.output import Fail

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.core.objects.trusted_root import TrustedKeys


@dataclass(frozen=True, slots=True)
class PinnedKeys:
    """The keys that are trusted, and who said so; no keys: the directory's own are taken for granted."""

    keys: "TrustedKeys | None"
    origin: str

    def line(self) -> str:
        """The first line of a report."""
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
    """Give a command `pin` and `no_pin`, for `pinned_by`."""
    decorated = click.option("--no-pin", is_flag=True, help="Judge by the keys that the directory itself names.")(
        command
    )
    return click.option(
        "--pin",
        metavar="KEY[:HUB_ID]",
        help="The key of the hub, ed25519:HEX, or the root of an ephemeral one, root:ed25519:HEX, and its hub_id; "
        "default: that of the context. [VEEN_PIN]",
    )(decorated)


def pinned_by(session: "CliSession", pin: str | None, no_pin: bool) -> PinnedKeys:
    """What the options and the context say."""
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
        TrustedKeys.parse(setting.value if hub_id is None else f"{setting.value}:{hub_id}"), setting.origin
    )


def bad_directory(code: str, what: str, cause: str, hint: str) -> Fail:
    """What a finding in a directory ends a command with: one about the pin has a code and a hint of its own."""
    if code == "pin":
        hint = "compare the key with what the hub's operator published; give the right one by --pin"
        return Fail("E.VERIFY.PIN", what, cause, hint)
    return Fail("E.VERIFY", what, cause, hint)
