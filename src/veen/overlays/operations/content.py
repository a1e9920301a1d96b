"""content_root: the Merkle root of items or of a directory (001 spec-3 §6.2, D-93, D-157).

A tree of nodes Ht("veen/content-node", left ‖ right) under Ht("veen/content-root", peaks), always hashed, as att_root
is (D-13). In the form "list" a leaf is the SHA-256 of an item, in the order of the list; in the form "tree" it also
binds the path and the size of a file, and files are sorted by path. The caller reads the files.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple

from veen.core.errors import VeenError
from veen.core.hashing import Ht, u32be, u64be
from veen.core.tree.mmr import Mmr, Tags

FORMS: Final = ("list", "tree")  # metadata.content_form
_TAGS: Final = Tags(node="veen/content-node", root="veen/content-root", hash_single_peak=True)
_EMPTY: Final = Ht("veen/content-root", b"")


class BadPath(VeenError):
    """A path that a content root cannot bind."""

    hint = "Rename the file: paths are relative, in Unicode form NFC, without empty, '.' or '..' parts."

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path!r}: {self.why}"


class ContentFile(NamedTuple):
    """A file of a directory, by its path relative to it, with "/" between the parts."""

    path: str
    size: int
    sha256: bytes


File = ContentFile  # the name in documents of earlier versions


def root_of_files(form: str, files: Iterable[ContentFile]) -> bytes:
    """Return the content root of files in one of `FORMS`."""
    return tree_root(files) if form == "tree" else list_root(file.sha256 for file in files)


class Differences(NamedTuple):
    """Paths in which files differ from those that were published."""

    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]

    def __bool__(self) -> bool:
        return any(self[:])


def compare_files(published: Iterable[ContentFile], present: Iterable[ContentFile]) -> Differences:
    """Compare files by path with the published ones."""
    before, now = ({file.path: file for file in files} for files in (published, present))
    return Differences(
        changed=tuple(sorted(path for path in before.keys() & now.keys() if before[path] != now[path])),
        missing=tuple(sorted(before.keys() - now.keys())),
        added=tuple(sorted(now.keys() - before.keys())),
    )


def list_root(hashes: Iterable[bytes]) -> bytes:
    """Return the root over items, given by the SHA-256 of each, in their order."""
    return _root(hashes)


def tree_root(files: Iterable[ContentFile]) -> bytes:
    """Return the root over the files of a directory, in any order. Raise BadPath for an ambiguous path."""
    by_path: dict[bytes, ContentFile] = {}
    for file in files:
        path = _check_path(file.path)
        if path in by_path:
            raise BadPath(file.path, "the path occurs twice")
        by_path[path] = file
    return _root(_leaf(path, file) for path, file in sorted(by_path.items()))


def _leaf(path: bytes, file: ContentFile) -> bytes:
    return Ht("veen/content-leaf", u32be(len(path)) + path + u64be(file.size) + file.sha256)


def _check_path(path: str) -> bytes:
    if unicodedata.normalize("NFC", path) != path:
        raise BadPath(path, "the path is not in Unicode form NFC")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise BadPath(path, "the path has an empty part, '.' or '..'")
    try:
        return path.encode()
    except UnicodeEncodeError as exc:
        raise BadPath(path, "the path is not Unicode") from exc


def _root(leaves: Iterable[bytes]) -> bytes:
    tree, is_empty = Mmr(tags=_TAGS), True
    for leaf in leaves:
        tree.append(leaf)
        is_empty = False
    return _EMPTY if is_empty else tree.root()
