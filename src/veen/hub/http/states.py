"""The states of an HTTP connection, as tables: state and event give the next state, or the event is illegal.

A connection has two sides, each with its own state (as in h11):

    InputState    progress of reading from the client         kept by `request_input.Reader`, which parses
    OutputState   ability to write answers to it              kept by `connection.Connection`, which writes

The sides are coupled in one place: once the output is on its way to its end, the input has ended (`is_legal`). Both are
owned by the event loop's thread. This module only decides; it does no I/O.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class InputState(Enum):
    """The state of reading from a client."""

    IDLE = "between requests"
    HEAD = "within a request line or headers"
    BODY = "within a body, or behind the headers of a request that has none"
    ENDED = "nothing more is read from this client; what it sends is dropped"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python function, and this one runs often


class InputEvent(Enum):
    """An event of the input."""

    BEGIN = "the first byte of a request"
    HEADERS = "the empty line behind the headers"
    COMPLETE = "the end of a request; another may follow"
    LAST = "the end of a request that asked to close the connection"
    REFUSE = "the request, or what was sent instead of one, is answered with an error and the connection ends"
    CLIENT_EOF = "the client closed its half of the connection, and all that it sent is parsed"
    DRAIN = "the hub takes no new request of this client, but finishes the one that it reads"
    STOP = "the connection ends"

    __hash__ = object.__hash__


class OutputState(Enum):
    """The state of writing to a client."""

    OPEN = "answers can be written"
    STALLED = "the client does not read: the transport's buffer is above its high-water mark"
    FLUSHING = "the last answer was written, and the client is still reading it; then LINGERING"
    LINGERING = "the hub closed its half, and the client may read the last answer before the socket is closed"
    CLOSING = "the transport sends what it has and closes"
    LOST = "the transport is gone"

    __hash__ = object.__hash__


class OutputEvent(Enum):
    """An event of the output."""

    STALL = "the transport asks to write no more"
    RESUME = "the transport asks to go on"
    HALF_CLOSE = "the last answer was written: close the hub's half"
    CLOSE = "close the transport, by a flush of its buffer or at once"
    LOSE = "the transport reports that the connection is gone"

    __hash__ = object.__hash__


INPUT_TABLE: Final[Mapping[InputState, Mapping[InputEvent, InputState]]] = {
    InputState.IDLE: {
        InputEvent.BEGIN: InputState.HEAD,
        InputEvent.REFUSE: InputState.ENDED,
        InputEvent.CLIENT_EOF: InputState.ENDED,
        InputEvent.DRAIN: InputState.ENDED,
        InputEvent.STOP: InputState.ENDED,
    },
    InputState.HEAD: {
        InputEvent.HEADERS: InputState.BODY,
        InputEvent.REFUSE: InputState.ENDED,
        InputEvent.CLIENT_EOF: InputState.ENDED,
        InputEvent.DRAIN: InputState.HEAD,  # a request that was begun is read to its end
        InputEvent.STOP: InputState.ENDED,
    },
    InputState.BODY: {
        InputEvent.COMPLETE: InputState.IDLE,
        InputEvent.LAST: InputState.ENDED,
        InputEvent.REFUSE: InputState.ENDED,
        InputEvent.CLIENT_EOF: InputState.ENDED,
        InputEvent.DRAIN: InputState.BODY,
        InputEvent.STOP: InputState.ENDED,
    },
    InputState.ENDED: {
        InputEvent.CLIENT_EOF: InputState.ENDED,
        InputEvent.DRAIN: InputState.ENDED,
        InputEvent.STOP: InputState.ENDED,
    },
}

OUTPUT_TABLE: Final[Mapping[OutputState, Mapping[OutputEvent, OutputState]]] = {
    OutputState.OPEN: {
        OutputEvent.STALL: OutputState.STALLED,
        OutputEvent.HALF_CLOSE: OutputState.LINGERING,
        OutputEvent.CLOSE: OutputState.CLOSING,
        OutputEvent.LOSE: OutputState.LOST,
    },
    OutputState.STALLED: {
        OutputEvent.RESUME: OutputState.OPEN,
        OutputEvent.HALF_CLOSE: OutputState.FLUSHING,
        OutputEvent.CLOSE: OutputState.CLOSING,
        OutputEvent.LOSE: OutputState.LOST,
    },
    OutputState.FLUSHING: {
        OutputEvent.RESUME: OutputState.LINGERING,
        OutputEvent.CLOSE: OutputState.CLOSING,
        OutputEvent.LOSE: OutputState.LOST,
    },
    OutputState.LINGERING: {
        OutputEvent.STALL: OutputState.FLUSHING,  # transports that collect writes may find out late
        OutputEvent.CLOSE: OutputState.CLOSING,
        OutputEvent.LOSE: OutputState.LOST,
    },
    OutputState.CLOSING: {
        OutputEvent.STALL: OutputState.CLOSING,  # the transport reports on its buffer until it is gone
        OutputEvent.RESUME: OutputState.CLOSING,
        OutputEvent.CLOSE: OutputState.CLOSING,
        OutputEvent.LOSE: OutputState.LOST,
    },
    OutputState.LOST: {
        OutputEvent.CLOSE: OutputState.LOST,  # a submit of a client that is gone may still be answered
    },
}

_MAY_READ: Final = frozenset(
    (OutputState.OPEN, OutputState.STALLED)
)  # in the other states of the output the input has ended


class IllegalEventError(RuntimeError):
    """An event that cannot happen in this state: a fault of the hub, not of the client."""

    def __init__(self, state: InputState | OutputState, event: InputEvent | OutputEvent) -> None:
        super().__init__(state, event)
        self.state, self.event = state, event

    def __str__(self) -> str:
        return f"{self.event} is illegal in {self.state}"


def after_input(state: InputState, event: InputEvent) -> InputState:
    """Return the next state of the input. Raise IllegalEventError if `event` cannot happen in `state`."""
    try:
        return INPUT_TABLE[state][event]
    except KeyError:
        raise IllegalEventError(state, event) from None


def after_output(state: OutputState, event: OutputEvent) -> OutputState:
    """Return the next state of the output. Raise IllegalEventError if `event` cannot happen in `state`."""
    try:
        return OUTPUT_TABLE[state][event]
    except KeyError:
        raise IllegalEventError(state, event) from None


def is_legal(reading: InputState, writing: OutputState) -> bool:
    """Return True if the two sides of a connection may be in these states together."""
    return reading is InputState.ENDED or writing in _MAY_READ
