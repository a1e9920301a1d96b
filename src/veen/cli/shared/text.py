"""Text for terminals: nothing that somebody else wrote may steer the reader's terminal or break a table.

Stream names, error messages of a hub and opened bodies come from outside. A control character in them could move the
cursor, set the window's title or turn "FAILED" into "ok"; a tab or a newline could forge a column or a row.
"""

import json
import textwrap
import unicodedata
from typing import Any, Final

# Cc: control; Cf: format, among them the marks that reverse the direction of text; Cs: halves of pairs from argv;
# Zl and Zp: separators of lines that are not "\n".
_STEERING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, *, keep: str = "") -> str:
    """`text` with every character that steers a terminal spelled out, but for those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in keep or unicodedata.category(character) not in _STEERING else _spelled(character)
        for character in text
    )


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def cell(value: Any) -> str:
    """A value as one cell of a table: no tab, no newline, no control character."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (dict, list, tuple)):
        return compact(value)
    return safe(str(value))


def width_of(text: str) -> int:
    """How many columns of a terminal `text` fills: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def padded(text: str, width: int) -> str:
    """`text` with spaces behind it, until it fills `width` columns."""
    return text + " " * (width - width_of(text))


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns; what was cut is said, and counted."""
    if width_of(text) <= width:
        return text
    room = width - len(f"… (+{len(text)} characters)")
    count = 0
    for character in text:
        room -= width_of(character)
        if room < 0:
            break
        count += 1
    return f"{text[:count]}… (+{len(text) - count} characters)"


def short(data: bytes) -> str:
    """A key or hash for people: its first and last four digits. Programs get all of it."""
    text = data.hex()
    return f"{text[:4]}…{text[-4:]}" if len(text) > 12 else text


def compact(value: Any) -> str:
    """JSON on one line."""
    return harmless(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain))


def pretty(value: Any) -> str:
    """JSON for eyes."""
    return harmless(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def harmless(text: str) -> str:
    """JSON that says the same to a program and steers no terminal: readable where it can be, escaped where it must."""
    if text.isascii() and "\x7f" not in text:
        return text  # JSON itself has escaped what is below the space
    return "".join(
        json.dumps(character)[1:-1] if character != "\n" and unicodedata.category(character) in _STEERING else character
        for character in text
    )


def _plain(value: Any) -> Any:
    """What JSON has no word for: bytes are hex, as everywhere in our JSON forms."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def block(label: str, text: str, width: int | None) -> str:
    """`label: text`, wrapped with a hanging indent if there is a width; words such as paths and hashes stay whole."""
    head = f"{label}:".ljust(7)
    body = safe(text, keep="\n")
    if width is None or len(head) + len(body) <= width:
        return head + body.replace("\n", "\n" + " " * 7)
    return textwrap.fill(
        body,
        width=max(width, 40),
        initial_indent=head,
        subsequent_indent=" " * 7,
        break_long_words=False,
        break_on_hyphens=False,
    )
