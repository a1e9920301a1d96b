"""A whole hub behind a real socket, in a thread of its own, and small clients that speak to it."""

import asyncio
import http.client
import json
import socket
import threading
from dataclasses import dataclass, field

from tests.hub import builders as w
from tests.waiting import DEADLINE_SEC

from veen.core.labels import hub_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity, HubKey, IdentityError
from veen.hub.admission.decide import Resolver
from veen.hub.admission.policy import Policy
from veen.hub.api.access import Access
from veen.hub.http.server import HttpServer, HttpSettings
from veen.hub.process.config import AttachmentPolicy
from veen.hub.process.observe import NullObserver
from veen.hub.process.runtime import api_of
from veen.hub.sequencer.sequencer import Sequencer
from veen.io.local import OsFs
from veen.storage.anchors import AnchorBackend, AnchorFile
from veen.storage.attachments import AttachmentFiles
from veen.storage.store import Store

ADMIN = b"an-administrator-token"
READER = b"a-reader-token-0000"
VERSION = "9.9.9"


class Identity(w.Signer):
    hub_id = hub_id_of(w.HUB.public)
    keys = (HubKey(hub_pk=w.HUB.public, valid_from=0),)
    signed_identity = (HubIdentity(keys), HubIdentity(keys).sign(w.HUB))


@dataclass
class Services:
    """What a runtime would provide, with knobs."""

    sequencer: Sequencer
    policy: Policy
    resolver: Resolver
    attachments: AttachmentFiles | None
    access: Access = field(default_factory=Access)
    identity: Identity = field(default_factory=Identity)
    observer: NullObserver = field(default_factory=NullObserver)
    server_version: str = VERSION
    attachment_policy: AttachmentPolicy = field(default_factory=AttachmentPolicy)
    not_admitting: str | None = None
    reason: str | None = None
    evidence: list[Equivocation] = field(default_factory=list)
    anchor_backend: AnchorBackend | None = None
    seal = staticmethod(w.seal)

    def not_ready(self):
        return self.reason

    def metrics_text(self):
        return "veen_submit_ok_total 0\n"

    async def rotate_key(self, overlap_seconds, request_id=None):
        raise IdentityError("this hub has but one key")

    @property
    def anchors(self):
        return self.anchor_backend

    def keep_evidence(self, evidence):
        self.evidence.append(evidence)


class LiveHub:
    """`with LiveHub(tmp_path) as hub:` and `hub.call("/v1/submit", request)`."""

    def __init__(
        self,
        directory,
        *,
        policy=None,
        limits=DEFAULT_LIMITS,
        access=None,
        settings=None,
        clock=lambda: w.NOW,
        workers=w.WORKERS,
        tls=None,
        resolver=None,
        max_queue=4096,
        attach=True,
        new_loop=asyncio.new_event_loop,
        open_fs=OsFs,
    ):
        self.directory, self.limits, self.settings, self.clock = directory, limits, settings, clock
        self.policy = policy or w.policy(preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
        self.access, self.workers, self.tls, self.max_queue = access or Access(), workers, tls, max_queue
        self.resolver, self.attach, self.open_fs = resolver or w.resolver(), attach, open_fs
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def run(self, coroutine, timeout=DEADLINE_SEC):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def on_loop(self, function, *args):
        async def call():
            return function(*args)

        return self.run(call())

    async def _start(self):
        fs = self.open_fs(self.directory)
        store = Store.open(fs, self.limits, w.seal)
        sequencer = Sequencer(
            store,
            w.Signer(),
            self.policy,
            self.resolver,
            workers=self.workers,
            clock=lambda: self.clock(),
            max_queue=self.max_queue,
        )
        attachments = AttachmentFiles(fs, 0) if self.attach else None
        self.services = Services(
            sequencer, self.policy, self.resolver, attachments, self.access, anchor_backend=AnchorFile(fs)
        )
        self.api = api_of(self.services)
        self.server = HttpServer(self.api, self.settings or HttpSettings())
        self.host, self.port = await self.server.listen("127.0.0.1", 0, tls=self.tls)

    async def _stop(self):
        await self.server.stop(5)
        await self.services.sequencer.close()
        if self.services.attachments is not None:
            self.services.attachments.close()
        await self.loop.shutdown_default_executor()

    def __enter__(self):
        self.thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_):
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    # --- clients -----------------------------------------------------------------------------------------

    def request(self, method, path, body=b"", headers=None):
        """One request on a connection of its own: status, headers, body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def call(self, path, request, response=None, *, form="cbor", headers=None, status=200):
        """POST a wire object and read another one in the same form."""
        body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
        got, heads, data = self.request("POST", path, body, {"Content-Type": f"application/{form}", **(headers or {})})
        assert got == status, (got, data)
        if response is None:
            return data
        assert heads["Content-Type"] == f"application/{form}"
        return response.from_bytes(data) if form == "cbor" else response.from_json(json.loads(data))

    def raw(self, data, *, expect=None, shutdown=False, timeout=10.0):
        """Send bytes as they are; all that comes back until the hub closes, or until `expect` answers are complete."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as connection:
            connection.sendall(data)
            if shutdown:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while expect is None or len(split_answers(received)) < expect:
                part = connection.recv(1 << 16)
                if not part:
                    break
                received += part
            return received


def split_answers(data):
    """The complete answers in a run of bytes: (status, headers, body)."""
    answers = []
    at = 0  # an offset: to copy what follows each of thousands of answers takes seconds
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        lines = data[at:end].decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        body = end + 4
        at = body + int(headers.get("content-length", 0))
        if at > len(data):
            break
        answers.append((int(lines[0].split()[1]), headers, data[body:at]))
    return answers


def detail_of(data):
    """The detail of an error in CBOR; nothing if it has none."""
    return ErrorEnvelope.from_bytes(data).detail or {}


def post(path, body, *headers, version="1.1"):
    lines = [f"POST {path} HTTP/{version}", "Host: hub", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
