"""The pages of a console over the demo's hub, for tests and for the pictures of the docs."""

from typing import Any

from tests.waiting import until

PLAIN = (
    "overview", "streams", "checkpoints", "recorder", "bridge", "query", "identity", "wallet", "capabilities",
    "operations", "discovery", "audit", "anchors", "equivocation", "verify", "settings", "help",
)  # fmt: skip


def visited(browser: Any, address: str) -> Any:
    """A tab that has shown the token and is on the overview."""
    page = browser.open(address)
    until(lambda: _arrived(page))
    return page


def _arrived(page: Any) -> Any:
    try:
        return page.evaluate("document.readyState === 'complete' && location.pathname.endsWith('/overview')")
    except AssertionError:  # it is on its way
        return False


def pages_of(page: Any) -> Any:
    """Paths by name; streams by what the console says."""
    answer = page.evaluate("fetch('streams.json').then((answer) => answer.json())")
    ids = {row["stream"]: row["stream_id"] for row in answer["streams"]}
    room, shop = ids["demo/control-room"], ids["record/app/shop"]
    return {name: f"/{name}" for name in PLAIN} | {
        "stream": f"/stream/{shop}",
        "message": f"/stream/{room}/3",
        "proof": f"/stream/{room}/3/proof",
        "answer": "/query?scope=record/app/shop&type=order&evidence=full",
        "ladder": f"/stream/{shop}/23/proof",
        "fold": f"/stream/{shop}/23/proof?step=3",
    }
