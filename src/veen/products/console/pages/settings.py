"""Settings page: the settings of this console and its limits. They are chosen at start."""

from veen import __version__
from veen.products.console.events import MAX_EVENTS
from veen.products.console.report import DigestCell, Section
from veen.products.console.uploads import MAX_UPLOAD_BYTES
from veen.products.console.views import Console, PageView, Query
from veen.products.console.writes import MAX_FORM_BYTES


async def settings(console: Console, query: Query) -> PageView:
    local = console.local
    running = {
        "hub": console.url,
        "identity": console.identity,
        "pin": console.pin.to_text(),
        "release": __version__,
        "streams": len(console.keyring.entries),
        "data_dir": None if local.data_dir is None else str(local.data_dir),
        "audits": [str(path) for path in local.audits],
        "witnesses": None if local.witness_policy is None else list(local.witness_policy.witnesses),
        "write": console.writer is not None,
        **local.settings,
    }
    bounds = {"events_of_a_fold": MAX_EVENTS, "upload_bytes": MAX_UPLOAD_BYTES}
    return PageView(
        template="report.html",
        title="Settings",
        command="veen config show",
        data={"settings": running, "bounds": bounds},
        verified_by=None,
        verified_what="these are settings of this machine, not facts of a log.",
        sections=(
            Section(
                title="This console",
                facts=(
                    ("Hub", console.url),
                    ("Identity", console.identity),
                    ("Pinned key", DigestCell(console.pin.newest.hub_pk.hex())),
                    ("Streams of the keyring", len(console.keyring.entries)),
                    ("Data directory", running["data_dir"] or "not given: queries are not answered here"),
                    ("Audits", ", ".join(map(str, local.audits)) or "none given"),
                    (
                        "Writing",
                        "never: this console is read-only"
                        if console.writer is None
                        else f"as {console.identity}: messages, anchors, revocations (--allow-write)",
                    ),
                    (
                        "Witness policy",
                        "none: cosignatures are not verified"
                        if local.witness_policy is None
                        else f"{len(local.witness_policy.witnesses)} witnesses",
                    ),
                    *local.settings.items(),
                ),
            ),
            Section(
                title="Appearance",
                note="Light or dark follows the setting of your browser or system. The browser stores nothing but the "
                "session cookie.",
            ),
            Section(
                title="Bounds",
                columns=("What", "At most"),
                rows=(
                    ("entries of a stream that a page folds", f"{MAX_EVENTS:,}"),
                    ("size of a file to verify", f"{MAX_UPLOAD_BYTES // 1024**2} MiB"),
                    ("size of a message to send", f"{MAX_FORM_BYTES // 1024} KiB as a form"),
                ),
            ),
        ),
    )
