"""A writer as a process of its own, which may be killed at any moment: -m tests.client.writer URL HUB_PK HOME TOTAL.

What was sent is counted by the client's own numbers, which survive; so a new process knows what is left to send.
"""

import asyncio
import sys
from pathlib import Path

from tests.client.hubs import QUICK, RING, person, token_for

from veen.client.client import Client
from veen.client.home import Home
from veen.client.verify.pin import HubPin


def body_of(number):
    return b"PLAINTEXT order %d of somebody" % number


async def write(url, hub_pk, home, total):
    who = person("alice")
    pin = HubPin.parse(hub_pk)
    async with await Client.connect(
        url, pin=pin, identity=who, keyring=RING, home=Home.at(Path(home)), retry=QUICK
    ) as client:
        await client.authorize(token_for(who.client_id))
        await client.recover("orders")
        sent = (await client.resync("orders")).client_seq
        print("ready", sent, flush=True)
        while sent < total:
            done = await client.send("orders", body_of(sent))
            sent = done.msg.client_seq
            print(sent, done.seq, flush=True)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
