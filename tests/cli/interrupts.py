"""Programs that Ctrl-C reaches, wherever the tests run."""

import signal

__all__ = ["interruptible"]


def interruptible() -> None:
    """For `preexec_fn`: a shell that runs tests in the background has them ignore SIGINT, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
