"""How fast a bundle is verified, and in how much memory: `python -m benchmarks.bridge [--events N …]`.

Writes bundles of N events, has the verifier judge each in its own process, and prints a JSON object per size. Memory
is the peak of that process, which must not grow with N. The limit is what two Ed25519 verifications take per event,
one of the author and one of the hub's receipt, on one core: the best of the loops before each run. The table goes to
docs/benchmarks.md.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import report
from tests.client.builders import HubLog, seeded
from tests.products.bridge.signer import AUTHOR, BRIDGE, EXPORTER, KEYS, PROFILE, SCHEMA, START, STREAM

from veen.core.crypto import ed25519
from veen.core.labels import stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.sealing.ciphertext import Binding, opening_of, seal
from veen.products.bridge.bundle import BundleEvent, BundleWriter, ExportCheckpoint, Header, bridge_id_of
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verifier import verify_apart
from veen.products.bridge.verify import BundleVerdict


def write_bundle(path: Path, events: int, body_bytes: int, *, openings: bool) -> HubLog:
    """A bundle of one label with as many events; memory holds one of them."""
    hub, random = HubLog(1), seeded("bench")
    label = hub.label(STREAM)
    with tempfile.TemporaryFile() as spool, path.open("w+b") as target:
        writer = BundleWriter(spool)
        for number in range(1, events + 1):
            binding = Binding(
                profile_id=PROFILE.profile_id(),
                label=label,
                client_id=AUTHOR.public,
                client_seq=number,
                prev_ack=0,
                auth_ref=None,
            )
            body = (b"%d " % number).ljust(body_bytes, b"x")
            sealed = seal(KEYS.reader_pk, binding, PayloadHdr(schema=SCHEMA), body, ikm=random(32), pad_block=0)
            msg = Msg.compose(
                AUTHOR,
                profile_id=binding.profile_id,
                label=label,
                client_seq=number,
                prev_ack=0,
                auth_ref=None,
                ciphertext=sealed.ciphertext,
            )
            receipt = hub.admit(msg, START)
            opening = opening_of(KEYS.secret(), msg, reader_pk=KEYS.reader_pk) if openings else None
            writer.add(BundleEvent(seq=number, receipt=receipt.to_bytes(), msg=msg.to_bytes(), opening=opening))
        header = Header(
            source_hub_id=hub.hub_id,
            source_hub_pk=hub.key.public,
            identity=hub.identity.to_bytes(),
            identity_sig=hub.identity.sign(hub.key),
            source_profile_id=PROFILE.profile_id(),
            export_stream_id=stream_id_of(STREAM),
            stream_name=STREAM,
            label=label,
            epoch=0,
            export_seq_from=1,
            export_seq_to=events,
            export_time_from=START,
            export_time_to=START,
            size_before=0,
            peaks_before=(),
            bridge_id=bridge_id_of(BRIDGE),
            bundle_seq=1,
            created_at=START,
        )
        tree = hub.trees[label]
        signed = Checkpoint.issue(
            hub.key, label_prev=label, label_curr=label, upto_seq=events, mmr_root=tree.root(), epoch=0
        )
        export = ExportCheckpoint(checkpoint=signed.to_bytes(), timestamp=START, hub_public=hub.key.public)
        writer.finish(header, export, EXPORTER, target)
    return hub


def signature_limit(seconds: float = 1.0) -> float:
    """Events a second if only their two signatures were verified, by libsodium on one core."""
    digest = bytes(32)
    signature = AUTHOR.sign(digest)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(50):
            ed25519.libsodium_verify(AUTHOR.public, digest, signature)
        count += 50
    return count / elapsed / 2


def table(rows: list[dict[str, Any]]) -> str:
    limit = max(row["limit"] for row in rows)
    lines = [
        "## Bridge: verification of a bundle",
        "",
        report.machine(),
        "",
        "One bundle, verified by the process without keys and network, on one core"
        f"{', every event opened as well' if rows[0]['openings'] else ''}. The limit is the two signatures of each "
        f"event (author, hub) by libsodium in a bare loop, the best of {len(rows)}: {limit:,.0f} events a second.",
        "",
        "| events | bundle MB | seconds | MB/s | events/s | ratio to the limit | peak memory MiB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['events']:,} | {row['bundle_mb']:.1f} | {row['seconds']:.1f} | {row['mb_per_second']:.1f} "
            f"| {row['events_per_second']:,} | {row['events_per_second'] / limit:.2f} | {row['peak_mib']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--body-bytes", type=int, default=300)
    parser.add_argument("--openings", action="store_true", help="open every event, too")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for events in sorted(options.events):
            path = Path(directory) / f"{events}.veenb"
            hub = write_bundle(path, events, options.body_bytes, openings=options.openings)
            trust = TrustList.from_json(
                [
                    {
                        "zone": "z1",
                        "bridge": BRIDGE,
                        "hub": f"ed25519:{hub.key.public.hex()}",
                        "exporters": [EXPORTER.public.hex()],
                    }
                ]
            )
            limit = signature_limit()
            began = time.perf_counter()
            verdict = verify_apart(path, Path(directory) / "spool", trust, {})
            seconds = time.perf_counter() - began
            assert isinstance(verdict, BundleVerdict), verdict
            megabytes = path.stat().st_size / 1e6
            row = {
                "events": events,
                "openings": options.openings,
                "bundle_mb": round(megabytes, 2),
                "seconds": round(seconds, 2),
                "mb_per_second": round(megabytes / seconds, 2),
                "events_per_second": round(events / seconds),
                "limit": round(limit),
                # Of all children so far: sizes ascend, so the last one counts.
                "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
            path.unlink()
    report.write_section("bridge", table(rows))


if __name__ == "__main__":
    main()
