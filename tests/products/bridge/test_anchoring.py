"""Anchors of bundle ids and reports: what somebody outside the log remembers covers them (AGB-17)."""

import contextlib
import json

import pytest
from tests.client.builders import seeded
from tests.client.hubs import OPEN, hub_at, person, pin_of, run
from tests.products.bridge.test_reconciling import arrived, bring, filled, sides_of
from tests.products.bridge.zones import phase, send_numbers

from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto.ed25519 import SigningKey
from veen.overlays.airgap.bodies import OnlineRecord, ReportRecord
from veen.products.bridge.audit import ONLINE_LOG, REPORTS, SignedReport, anchor_stream, record_report
from veen.products.bridge.bundle import ReportRefused
from veen.products.bridge.reconciling import reconcile, sign_report

KEY = SigningKey(b"\x21" * 32)


def with_admin(tmp_path):
    """Settings of a hub whose admin token is in a file."""
    token = tmp_path / "admin.token"
    token.write_text("a-long-admin-token-of-this-test-only\n")
    token.chmod(0o600)
    return {**OPEN, "auth.admin_token_files": str(token)}


@contextlib.asynccontextmanager
async def at_hub(hub, tmp_path, keys):
    """A client that shows the admin token."""
    async with await Client.connect(
        hub.url, pin=pin_of(hub), identity=person("auditor"), keyring=Keyring.of([keys]),
        home=Home.at(tmp_path / "auditor"), token_file=tmp_path / "admin.token",
    ) as client:  # fmt: skip
        yield client


@pytest.mark.req("AGB-17")
def test_an_anchor_of_the_audit_log_covers_the_bundle_ids(tmp_path):
    async def work(world):
        await send_numbers(world, 1, 3)
        (first,) = await world.exporter().export("record/security/auth")
        await send_numbers(world, 4, 5)
        (second,) = await world.exporter().export("record/security/auth")
        keys = StreamKeys.create(ONLINE_LOG, random=seeded(f"{tmp_path}{ONLINE_LOG}"))
        async with at_hub(world.z1, tmp_path, keys) as client:
            anchor = await anchor_stream(client, ONLINE_LOG)
            assert world.z1.anchors.verify(anchor.mmr_root, anchor.anchor_ref)
            ids = set()
            async for entry in client.read(ONLINE_LOG):
                proven = await client.proof(ONLINE_LOG, entry.seq, tree_size=anchor.upto_seq)
                assert proven.root == anchor.mmr_root
                ids.add(OnlineRecord.from_bytes(entry.event.body).bundle_id)
            assert ids == {first.trailer.bundle_id, second.trailer.bundle_id}
            assert await anchor_stream(client, ONLINE_LOG) == anchor  # once for each checkpoint
        with pytest.raises(HubRefused, match=r"E\.UNAUTHORIZED"):
            await anchor_stream(world.online, ONLINE_LOG)

    phase(tmp_path, work, settings=with_admin(tmp_path))


@pytest.mark.req("AGB-17")
def test_a_report_is_recorded_and_anchored(tmp_path):
    async def cross(world):
        await filled(world)
        await bring(world)

    world = phase(tmp_path, cross)
    report = reconcile(arrived(world), sides_of(world))
    data = json.dumps(sign_report(report, KEY), indent=1).encode()

    signed = SignedReport.read(data)
    assert (signed.signer, signed.is_clean) == (KEY.public, True)

    async def story():
        async with (
            hub_at(tmp_path / "hub", settings=with_admin(tmp_path)) as hub,
            at_hub(hub, tmp_path, StreamKeys.create(REPORTS)) as client,
        ):
            sent = await record_report(client, signed, operator="auditor", now=7)
            anchor = await anchor_stream(client, REPORTS, sent.seq)
            assert hub.anchors.verify(anchor.mmr_root, anchor.anchor_ref)
            proven = await client.proof(REPORTS, sent.seq, tree_size=anchor.upto_seq)
            assert (proven.root, proven.receipt.leaf_hash) == (anchor.mmr_root, sent.msg_id)
            (entry,) = [entry async for entry in client.read(REPORTS)]
            body = ReportRecord.from_bytes(entry.event.body)
            assert (body.report_hash, body.is_clean, body.ts) == (signed.report_hash, True, 7)

    run(story())


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value | {"signature": "00" * 64},
        lambda value: value | {"report": value["report"] | {"clean": False}},
        lambda value: value | {"signer_pk": SigningKey(b"\x22" * 32).public.hex()},
        lambda value: value | {"signer_pk": "zz"},
        lambda value: {},
        lambda value: [],
    ],
)
def test_a_report_that_was_changed_is_refused(damage):
    from veen.products.bridge.reconciling import BridgeReport

    value = sign_report(BridgeReport({"clean": True, "streams": []}), KEY)
    assert SignedReport.read(json.dumps(value).encode()).is_clean
    with pytest.raises(ReportRefused):
        SignedReport.read(json.dumps(damage(value)).encode())


def test_what_is_no_json_is_refused():
    with pytest.raises(ReportRefused):
        SignedReport.read(b"\xff\x00")
