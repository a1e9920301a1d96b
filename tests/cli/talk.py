"""Somebody at the command line with a home, an identity and a real hub to talk to."""

import json

from tests.cli.homes import Cli

DEV = ("--dev", "--set", "engine.workers=0", "--set", "log.level=error")


class Talk(Cli):
    """`veen` in a home with an identity and a context for one hub."""

    def __init__(self, root, hub, name="alice"):
        super().__init__(root)
        self.hub = hub
        self.me = self.keygen(name)
        self.point_at(hub)

    def point_at(self, hub, name="dev"):
        self.run("context", "add", name, "--hub", hub.url, "--pin", hub.about["hub_pk"], "--use")

    def new_stream(self, name="record/app"):
        self.run("id", "keyring", "new", name)
        return name

    def let_write(self, name, stream):
        """A second identity, which has the write key of a stream of the first."""
        shared = self.json("id", "keyring", "share", stream)
        text = next(value for value in shared.values() if str(value).startswith("veen-stream1"))
        identity = self.keygen(name)
        self.run("id", "keyring", "add", text, "--identity", name)
        return identity

    def say(self, stream, *bodies):
        return [self.json("send", stream, body) for body in bodies]

    def entries(self, stream, *options, **more):
        result = self.run("stream", stream, "--ndjson", *options, **more)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def lines(self, *args, **more):
        return [line.split("\t") for line in self.run(*args, **more).stdout.splitlines()]
