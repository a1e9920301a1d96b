"""evidence.html: an evidence file and its verifier in one page, which opens from a USB stick and asks no network.

The page has its contents twice. Its HTML is written here, for readers without JavaScript, and is marked as
not verified. Where JavaScript runs, `page.js` verifies the evidence with `veen-verify.js` and replaces all of it
by the verified contents, so that the HTML cannot contradict the evidence.

The Content-Security-Policy allows one script and one style, by their hashes, and nothing else: no request leaves the
page. `veen-verify.js` is an ES module of its own, which the console serves as it is. Here both modules are put into one
script, since a page from a file cannot import another file.
"""

import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from veen.core.evidence_check import CheckedEntry, EvidenceReport

__all__ = ["page", "script", "style"]

_ROWS: Final = 200
_CHARS: Final = 2_000
_STEERING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./veen-verify\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)


def script() -> str:
    """Return both modules as one, without the export of the first and the import of the second."""
    verifier, without_export = _EXPORT.subn("", _text("veen-verify.js"))
    shown, without_import = _IMPORT.subn("", _text("page.js"))
    assert without_export == without_import == 1  # noqa: S101 - our own files
    return f"{verifier}{shown}"


def style() -> str:
    return _text("page.css")


def page(data: bytes, report: EvidenceReport, *, exporter_pin: str) -> bytes:
    """Return the page for the evidence file `data` with its `report`; the same evidence gives the same bytes."""
    code, look = script(), style()
    policy = (
        f"default-src 'none'; script-src '{_source(code)}'; style-src '{_source(look)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    name = "" if report.stream_name is None else f": {_visible(report.stream_name)}"
    rows = "".join(map(_row, report.entries[:_ROWS]))
    more = len(report.entries) - _ROWS
    note = f"{_ROWS} of {len(report.entries)} entries are shown." if more > 0 else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>VEEN evidence</title>
<style>{look}</style>
</head>
<body>
<main>
<h1 id="title">Evidence{escape(name)}</h1>
<div id="mark" class="mark" role="status" aria-live="polite">
<span class="sign" aria-hidden="true"></span>
<div><strong id="mark-title">Not verified by anybody yet</strong>
<span id="mark-detail">What follows was written by the exporter. Turn JavaScript on to let this browser verify it, or \
check the evidence file with veen verify.</span></div>
</div>
<form id="pin-form" class="card" hidden>
<h2><label for="pin">Key of the hub</label></h2>
<div class="row"><input id="pin" type="text" autocomplete="off" spellcheck="false" aria-describedby="pin-note" \
value="{escape(exporter_pin)}"><button>Verify with this key</button></div>
<span id="pin-note" class="muted">Given by the exporter of this page.</span>
<label class="line"><input id="pin-mine" type="checkbox"> I compared this key with the one that the operator of the \
hub published.</label>
</form>
<p id="who" class="muted">Everything below was stated by the exporter and was not verified.</p>
<section class="card shown"><h2>What this is</h2><dl id="facts">{_facts(report)}</dl></section>
<div class="two shown">
<section class="card"><h2 id="proves-title">It proves, once it is verified</h2>
<ul id="proves">{_items(report.proves())}</ul></section>
<section class="card"><h2>It does not prove</h2><ul id="limits">{_items(report.limits())}</ul></section>
</div>
<section class="card long shown"><h2>Entries</h2>
<table><thead><tr><th scope="col">No.</th><th scope="col">Time stated by the hub</th><th scope="col">Author key</th>\
<th scope="col">Content</th></tr></thead><tbody id="entries">{rows}</tbody></table>
<p id="entries-note" class="muted">{escape(note)}</p>
</section>
<footer>
<p>This page asks no network and carries the evidence file itself.</p>
<p id="save-line" hidden><button id="save" type="button">Save the evidence file</button></p>
<p>Check it with a verifier of your own: <code>veen verify evidence.veen-evidence --hub-pk KEY</code></p>
</footer>
</main>
<script id="evidence" type="text/plain">{b64encode(data).decode()}</script>
<script type="module">{code}</script>
</body>
</html>
""".encode()


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _source(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _facts(report: EvidenceReport) -> str:
    rows = [
        ("Stream", "not named" if report.stream_name is None else _visible(report.stream_name)),
        ("Entries", f"{len(report.entries)}, by {len(report.authors)} author keys"),
        ("Hub", report.identity.hub_id.hex()),
        *(
            (f"Log, entries {', '.join(f'{first} to {last}' for first, last in log.runs)}", log.label.hex())
            for log in report.logs
        ),
    ]
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _row(entry: CheckedEntry) -> str:
    author = entry.author.hex()
    return (
        f"<tr><td>{entry.seq}</td><td>{escape(_time(entry.hub_ts))}</td>"
        f'<td><code title="{author}">{author[:8]}…{author[-4:]}</code></td><td>{_content(entry)}</td></tr>'
    )


def _content(entry: CheckedEntry) -> str:
    if entry.body is None:
        return f'<span class="muted">sealed, {entry.msg_bytes} bytes of ciphertext</span>'
    try:
        text = _visible(entry.body.decode(), keep="\n\t")
    except UnicodeDecodeError:
        text = f"hex {entry.body.hex()}"
    cut = f"{text[:_CHARS]}…" if len(text) > _CHARS else text
    return f"<pre>{escape(cut)}</pre>"


def _time(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _visible(text: str, keep: str = "") -> str:
    """Spell out controls, marks of direction and other invisible characters, so that a name cannot reorder its
    letters."""
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _STEERING
        else f"⟨U+{ord(character):04X}⟩"
        for character in text
    )
