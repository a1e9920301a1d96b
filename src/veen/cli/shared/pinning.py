"""Hub keys to verify a directory by: those of `--pin`, of the context, or only those in the directory itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared import options
from veen.cli.shared.output import Fail

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
