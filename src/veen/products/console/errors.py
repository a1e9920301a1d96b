"""Refusals of the console itself. Errors of the client, the hub and the core keep their own names."""

from veen.core.errors import StatedError


class ConsoleError(StatedError, code="E.CONSOLE"):
    """A request that the console does not answer with data."""


class BrowserTokenRefused(ConsoleError, code="E.CONSOLE.TOKEN"):
    """The browser did not present the token of this console."""


class HostRefused(ConsoleError, code="E.CONSOLE.HOST"):
    """The Host header names another machine: DNS rebinding, or a name that was not allowed."""


class BadAddress(ConsoleError, code="E.CONSOLE.ADDRESS"):
    """An invalid path, number or time of a page."""


class UploadInvalid(ConsoleError, code="E.CONSOLE.UPLOAD"):
    """A form that cannot be read, or a file above the limit."""


class LoginRefused(ConsoleError, code="E.CONSOLE.LOGIN"):
    """The browser is not logged in, or name and password do not match."""


class TooManyAttempts(ConsoleError, code="E.CONSOLE.ATTEMPTS"):
    """Too many logins failed; `seconds` is the time to wait."""

    def __init__(self, what: str, seconds: int = 60) -> None:
        super().__init__(what)
        self.seconds = seconds


class PasswordFileInvalid(ConsoleError, code="E.CONSOLE.PASSWORDS"):
    """An invalid password file."""


class CrossSiteRequest(ConsoleError, code="E.CONSOLE.ORIGIN"):
    """A form that was not sent by a page of this console and this session."""


class ConsoleReadOnly(ConsoleError, code="E.CONSOLE.READ_ONLY"):
    """A write to a console that was started without --allow-write."""


class FormInvalid(ConsoleError, code="E.CONSOLE.FORM"):
    """A form that is too large, or lacks a field."""
