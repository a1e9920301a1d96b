"""Text for terminals: foreign text must not control the reader's terminal or break a table.

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
    """Spell out every character of `text` that controls a terminal, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _STEERING
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def cell(value: Any) -> str:
    """Format a value as one cell of a table: no tab, no newline, no control character."""
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
    """Return the number of terminal columns of `text`: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def pad(text: str, width: int) -> str:
    """Append spaces to `text` until it fills `width` columns."""
    return text + " " * (width - width_of(text))


def cut(text: str, width: int) -> str:
    """Cut `text` to at most `width` columns, and append the number of cut characters."""
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
    """Return the first and last four digits of a key or hash, for people. Programs get all of it."""
    text = data.hex()
    return f"{text[:4]}…{text[-4:]}" if len(text) > 12 else text


def compact(value: Any) -> str:
    """Encode as JSON on one line."""
    return harmless(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain))


def pretty(value: Any) -> str:
    """Encode as indented JSON."""
    return harmless(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def harmless(text: str) -> str:
    """Escape characters in JSON that control a terminal; a program reads the same value."""
    if text.isascii() and "\x7f" not in text:
        return text  # JSON itself has escaped what is below the space
    return "".join(
        json.dumps(character)[1:-1] if character != "\n" and unicodedata.category(character) in _STEERING else character
        for character in text
    )


def _plain(value: Any) -> Any:
    """Convert values without a JSON form: bytes to hex, as everywhere, others to text."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def block(label: str, text: str, width: int | None) -> str:
    """Format `label: text`, wrapped with a hanging indent if there is a width; do not break paths and hashes."""
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
