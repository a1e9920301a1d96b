"""Check of a pin against the hub at its URL, when a context is added, if the hub answers."""

from pathlib import Path
from typing import Final

from veen.cli.shared.output import Fail

_SECONDS: Final = 5.0


def check_pin(url: str, pin: str, ca_file: Path | None, token_file: Path | None, *, insecure_http: bool) -> str:
    """Return "the hub has this key", or the reason why it was not checked. Raise Fail if the hub has other keys.

    This is no proof: later signatures of the hub must verify under the pin. It catches a mistyped key before it is
    saved.
    """
    from veen.client.errors import ClientError
    from veen.client.transport.hubapi import HubApi
    from veen.core.errors import SignatureError, VerifyError
    from veen.core.pin_text import PinnedKey

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
