"""What can go wrong with a data directory."""

from veen.core.errors import VeenError, VerifyError

__all__ = ["CorruptError", "LockedError", "NoSpaceError", "StorageError"]


class StorageError(VeenError):
    """The disk does not do what it must; nothing was acknowledged that is not durable."""

    hint = "Check free space, permissions and the health of the disk, then start again."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class LockedError(StorageError):
    """Another process writes to this data directory."""

    hint = "Stop the other hub first. Two writers with one identity would prove each other dishonest."

    def __init__(self, directory: str, holder: str) -> None:
        super(StorageError, self).__init__(directory, holder)
        self.directory, self.holder = directory, holder

    def __str__(self) -> str:
        return f"{self.directory}: in use by another hub ({self.holder or 'unknown process'})"


class NoSpaceError(StorageError):
    """The disk is full; nothing of the last group counts as written."""

    hint = "Free some space or enlarge the disk; the hub admits messages again as soon as there is room."


class CorruptError(VerifyError):
    """A file of the data directory is not what it was when it was written: where, and what was found."""

    hint = "Keep the directory as evidence and restore from a replica; `veen hub verify-data DIR` checks all of it."

    def __init__(self, path: str, offset: int, what: str) -> None:
        super(VerifyError, self).__init__(path, offset, what)
        self.path, self.offset, self.what = path, offset, what

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset}: {self.what}"
