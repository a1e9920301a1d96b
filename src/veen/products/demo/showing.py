"""`veen demo --console`: keeps the hub of the story running, adds a recorder and overlays, and opens a browser."""

import asyncio
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from veen.client.home import Home
from veen.client.send.captokens import TokenStore
from veen.products.console.commands.group import browser_page
from veen.products.demo.filling import fill_overlays
from veen.products.demo.recording import record_lines
from veen.products.demo.story import STREAM, Story, connect, run_hub

if TYPE_CHECKING:
    from veen.products.console.guard import BrowserAdmission


def show(story: Story) -> None:
    """Serve the console over the hub of the story until Ctrl-C."""
    try:
        asyncio.run(_show(story))
    except KeyboardInterrupt:
        story.output.note("the console and its hub have ended")


async def _show(story: Story) -> None:
    from veen.products.console.rates import HubRates
    from veen.products.console.serving import Listening, serve
    from veen.products.console.views import Console, LocalFiles

    root = story.root / "console"
    root.mkdir()
    evidence = root / "evidence"
    evidence.mkdir()
    (evidence / "evidence.cbor").write_bytes((story.root / "evidence.cbor").read_bytes())
    tokens = TokenStore(story.home.tokens_fs("bob"))
    bob = story.people["bob"]
    async with run_hub(story.root / "hub", issuer_pk=bob.identity.id_sign_pk) as hub:
        roles, _ = await record_lines(hub, root, Home.at(root / "recorder"))
        ring = bob.secrets.keyring
        for keys in roles["admin"].keystore.secrets.keyring.entries:
            ring = ring.with_keys(keys)
        bob.secrets = replace(bob.secrets, keyring=ring)
        async with await connect(story, hub.url, "bob") as client:
            rates = HubRates(client)
            await rates.sample()  # so that the overview shows what the rest of the story was
            await fill_overlays(client, bob.identity, hub.url, now=int(time.time()), anchored=STREAM, tokens=tokens)
            local = LocalFiles(tokens=tokens, evidence=evidence, data_dir=story.root / "hub")
            console = Console(client, client.keyring, url=hub.url, identity="bob", local=local)
            console.rates = rates
            await rates.sample()
            with browser_page(root / "open") as write:

                def announce(url: str, admission: "BrowserAdmission") -> None:
                    address = f"{url}/?token={admission.token}"
                    page: Path = write(url, admission)
                    story.output.notice(
                        f"the console is at {address} (the address works once; Ctrl-C ends it)",
                        url=url,
                        address=address,
                    )
                    webbrowser.open(page.as_uri())

                await serve(console, Listening(), announce)
