"""The `logging` of Python: records become events of the recorder (docs/howto/record-python.md)."""

from veen.products.recorder.logging_handler import RecorderHandler

__all__ = ["RecorderHandler"]
