"""External logins at a real OpenID provider on loopback: links in the log, sessions, and their end (001 ID §10.2)."""

import contextlib
import os
import subprocess
import sys
import time
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV
from tests.client.builders import seeded
from tests.client.hubs import client_at, hub_at, person, pin_of, run
from tests.products.idgateway.provider import CLIENT_ID, CLIENT_SECRET, ProviderProcess

from veen.api.token_authority import TokenAuthority
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.captokens import TokenStore
from veen.client.transport.inprocess import InProcess
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.policies import realm_id_of
from veen.io.local import OsFs
from veen.overlays.id import drafts
from veen.overlays.id.ids import org_id_of, org_stream
from veen.products.idgateway.gateway import (
    IdGateway,
    LoginRefused,
    ProviderClient,
    ProviderFailed,
    ProviderSettings,
    SessionEnded,
    StateUnknown,
    TokenRefused,
)
from veen.products.idgateway.http import make_app

REALM = realm_id_of("shop")
CALLBACK = "http://127.0.0.1:9/callback"
LINKS = StreamKeys.create("id/external", random=seeded("id/external"))
ORG = SigningKey(b"\x31" * 32)
ORG_ID = org_id_of(ORG.public)
REVOCATIONS = StreamKeys.create(f"hex:{org_stream(ORG_ID).hex()}", random=seeded("id/org"))  # that of the organization


@pytest.fixture(scope="module")
def idp(tmp_path_factory):
    provider = ProviderProcess(tmp_path_factory.mktemp("provider"), CALLBACK)
    yield provider
    provider.end()


class Clock:
    """Runs ahead of the system's clock by as much as a test likes."""

    ahead = 0.0

    def __call__(self):
        return time.time() + self.ahead


@contextlib.asynccontextmanager
async def gateway_at(path, hub, idp, *, name="gateway", clock=None, **options):
    clock = clock or Clock()
    settings = ProviderSettings(
        name="corp", issuer=idp.issuer, client_id=CLIENT_ID, client_secret=CLIENT_SECRET,
        introspection_url=f"{idp.issuer}/introspect/",
    )  # fmt: skip
    ring = Keyring.of([LINKS, REVOCATIONS])
    (path / "tokens").mkdir(parents=True, exist_ok=True)
    async with (
        client_at(InProcess(hub.api), pin_of(hub), person(name), path / name, ring=ring) as client,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        provider = ProviderClient(settings, http, clock=clock)
        await provider.open()
        yield IdGateway(
            TokenAuthority(client, TokenStore(OsFs(path / "tokens"))), provider,
            stream_id=LINKS.stream_id, realm_id=REALM, secret=b"s" * 32, redirect_uri=CALLBACK, clock=clock, **options,
        )  # fmt: skip


def answered(idp, url, name="alice"):
    """Return the code and the state that the provider sends back."""
    query = parse_qs(urlsplit(idp.log_in(url, name)).query)
    return query["code"][0], query["state"][0]


async def entered(gateway, idp, name="alice"):
    state, url = gateway.begin()
    code, returned = answered(idp, url, name)
    return await gateway.finish(code=code, state=returned, browser_state=state)


@pytest.mark.req("ID-21")
def test_a_login_makes_an_account_with_one_link_and_finds_it_again(tmp_path, idp):
    """001 ID §10.2: validate the token, locate or create ctx_id, emit the link. Also after a restart."""

    async def story():
        async with hub_at(tmp_path / "hub") as hub:
            async with gateway_at(tmp_path, hub, idp) as gateway:
                first = await entered(gateway, idp)
                assert (first.created, first.written) == (True, 2)  # a profile and a link
                again = await entered(gateway, idp)
                assert (again.ctx_id, again.created, again.written) == (first.ctx_id, False, 0)
                bob = await entered(gateway, idp, "bob")
                assert bob.ctx_id != first.ctx_id
            async with gateway_at(tmp_path, hub, idp) as gateway:
                later = await entered(gateway, idp)
                assert (later.ctx_id, later.written) == (first.ctx_id, 0)

    run(story())


@pytest.mark.req("ID-21")
def test_what_this_browser_did_not_begin_or_the_provider_did_not_say_is_refused(tmp_path, idp):
    async def story():
        async with hub_at(tmp_path / "hub") as hub, gateway_at(tmp_path, hub, idp) as gateway:
            state, url = gateway.begin()
            code, returned = answered(idp, url)
            with pytest.raises(StateUnknown):  # the answer of another browser
                await gateway.finish(code=code, state=returned, browser_state="another")
            done = await gateway.finish(code=code, state=returned, browser_state=state)
            with pytest.raises(StateUnknown):  # the same answer again
                await gateway.finish(code=code, state=returned, browser_state=state)
            state, _ = gateway.begin()
            with pytest.raises(ProviderFailed):  # a code that was used
                await gateway.finish(code=code, state=state, browser_state=state)
            state, url = gateway.begin()
            nonce = parse_qs(urlsplit(url).query)["nonce"][0]
            code, returned = answered(idp, url.replace(nonce, "another-nonce"))
            with pytest.raises(TokenRefused) as refused:
                await gateway.finish(code=code, state=returned, browser_state=state)
            assert refused.value.code == "ID.JWT_NONCE"
            assert (await gateway.session(done.session)).ctx_id == done.ctx_id

    run(story())


@pytest.mark.req("ID-21", "ID-23")
def test_a_session_ends_with_its_token_its_account_its_time_and_at_logout(tmp_path, idp):
    async def story():
        clock = Clock()
        async with hub_at(tmp_path / "hub") as hub:
            options = {"also": [REVOCATIONS.stream_id], "trusted_orgs": [ORG_ID], "clock": clock}
            async with gateway_at(tmp_path, hub, idp, **options) as gateway:
                done = await entered(gateway, idp)
                clock.ahead += 31
                assert (await gateway.session(done.session)).ctx_id == done.ctx_id  # introspection: active
                idp.end_all_sessions()
                clock.ahead += 31
                with pytest.raises(SessionEnded):
                    await gateway.session(done.session)
                left = await entered(gateway, idp)
                gateway.end(left.session)
                with pytest.raises(SessionEnded):
                    await gateway.session(left.session)
                bob = await entered(gateway, idp, "bob")
                async with client_at(
                    InProcess(hub.api), pin_of(hub), person("org"), tmp_path / "org", ring=Keyring.of([REVOCATIONS])
                ) as org:
                    revocation = drafts.revoke_by_org(ORG_ID, ctx_id=bob.ctx_id, realm_id=REALM, ts=int(time.time()))
                    await org.send(REVOCATIONS, revocation.draft.body, schema=revocation.draft.schema)
                clock.ahead += 31
                with pytest.raises(SessionEnded):
                    await gateway.session(bob.session)
                with pytest.raises(LoginRefused):
                    await entered(gateway, idp, "bob")
                long = await entered(gateway, idp)
                clock.ahead += 9 * 3600
                with pytest.raises(SessionEnded):
                    await gateway.session(long.session)

    run(story())


@pytest.mark.req("ID-21")
def test_over_http_cookies_bind_a_login_to_its_browser_and_strangers_are_bounded(tmp_path, idp):
    async def story():
        async with hub_at(tmp_path / "hub") as hub, gateway_at(tmp_path, hub, idp) as gateway:
            transport = httpx2.ASGITransport(app=make_app(gateway, is_tls=False))
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9") as browser:
                begun = await browser.get("/login")
                assert begun.status_code == 303
                target = idp.log_in(begun.headers["location"], "alice")
                async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9") as thief:
                    assert (await thief.get(target)).json()["code"] == "ID.STATE"
                    assert (await thief.get("/session")).status_code == 401
                done = await browser.get(target)
                assert (done.status_code, done.json()["created"]) == (200, True)
                assert "httponly" in done.headers["set-cookie"].lower()
                assert (await browser.get("/session")).json()["ctx_id"] == done.json()["ctx_id"]
                assert (await browser.get("/callback?code=x&state=y")).status_code == 403
                assert (await browser.get(f"/callback?code={'x' * 5_000}&state=y")).status_code == 400
                assert (await browser.post("/logout")).status_code == 204
                assert (await browser.get("/session")).status_code == 401
                answers = [(await browser.get("/login")).status_code for _ in range(31)]
                assert answers[-1] == 429

    run(story())


def test_a_provider_is_used_over_tls_only_and_under_its_own_name(idp):
    async def story():
        with pytest.raises(ProviderFailed, match="https"):
            ProviderSettings(name="x", issuer="http://idp.example.com", client_id="a", client_secret="b")
        settings = ProviderSettings(name="x", issuer=f"{idp.issuer}/", client_id="a", client_secret="b")
        async with httpx2.AsyncClient(trust_env=False) as http:
            with pytest.raises(ProviderFailed, match="another issuer"):
                await ProviderClient(settings, http).open()
            nobody = ProviderSettings(name="x", issuer="http://127.0.0.1:9", client_id="a", client_secret="b")
            with pytest.raises(ProviderFailed):
                await ProviderClient(nobody, http).open()

    run(story())


@pytest.mark.req("ID-21")
def test_the_command_serves_a_login_that_stands_in_the_log(tmp_path, idp):
    """The gateway's identity has one stream; a reader merges it and finds the account."""
    with running(tmp_path / "hub", *DEV) as hub:
        login = Person(tmp_path / "login", hub, "login")
        login.new_stream("id/external")
        for name, text in (("secret", CLIENT_SECRET), ("custody", "c" * 40)):
            (tmp_path / name).write_text(text)
        words = (
            "id", "gateway", "serve", "id/external", "--issuer", idp.issuer, "--provider", "corp", "--oidc-client",
            CLIENT_ID, "--oidc-secret-file", tmp_path / "secret", "--custody-file", tmp_path / "custody",
            "--url", "http://127.0.0.1:9", "--realm", "shop", "--port", "0",
        )  # fmt: skip
        plain = login.json(*words, "--host", "0.0.0.0", code=5)  # noqa: S104 - it is refused
        assert plain["code"] == "E.LOCAL.PLAIN_HTTP"
        command = [sys.executable, "-m", "veen", *map(str, words), "--json"]
        process = subprocess.Popen(command, env={**os.environ, **login.env}, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            url = next(part for part in process.stderr.readline().split('"') if part.startswith("http://127.0.0.1:"))
            with httpx2.Client() as browser:
                begun = browser.get(f"{url}/login")
                target = idp.log_in(begun.headers["location"], "alice")
                done = browser.get(f"{url}/callback?{urlsplit(target).query}").json()
                assert done["created"] is True
        finally:
            process.terminate()
            process.wait(60)
            process.stderr.close()
        links = login.json("id", "external", "list", "--stream", "id/external", "--realm", "shop")
        assert done["ctx_id"] in str(links)
