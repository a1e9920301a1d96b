"""What the console refuses by itself. Errors of the client, the hub and the core keep their own names."""

from veen.core.errors import StatedError

__all__ = ["BadAddress", "BrowserTokenRefused", "ConsoleError", "HostRefused", "UploadInvalid"]


class ConsoleError(StatedError):
    """A request that the console does not answer with data."""

    code = "E.CONSOLE"


class BrowserTokenRefused(ConsoleError):
    """The browser has not shown the token of this console."""

    code = "E.CONSOLE.TOKEN"


class HostRefused(ConsoleError):
    """The Host header names another machine: DNS rebinding, or a name that was not allowed."""

    code = "E.CONSOLE.HOST"


class BadAddress(ConsoleError):
    """A path, number or time of a page that cannot be one."""

    code = "E.CONSOLE.ADDRESS"


class UploadInvalid(ConsoleError):
    """A form that cannot be read, or a file above the bound."""

    code = "E.CONSOLE.UPLOAD"
