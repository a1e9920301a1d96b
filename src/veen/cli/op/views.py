"""The commands of `veen op` that compare: content with what was published, accesses with what was audited."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.op.args import Reading, id_of
from veen.cli.op.write import content_files, content_root_of
from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.overlay_commands import absent, show_folded, state_of
from veen.cli.shared.people import principal_of, show_table
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Outcome, Reason, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded
    from veen.overlays.framework.snapshot import Cut
    from veen.overlays.operations.content import ContentFile
    from veen.overlays.operations.publication import Published

_PATH = click.Path(exists=True, path_type=Path)


def _folded(session: CliSession, noun: str, stream: str, reading: Reading, view: View) -> "Folded":
    streams = reading.streams(stream)
    return state_of(session, reading.fold(session, f"operation.{noun}", streams), streams, view)


@click.command("root")
@click.argument("paths", type=_PATH, nargs=-1, required=True)
@output_options
def publication_root(output: Output, paths: tuple[Path, ...]) -> None:
    """Print the content root of PATHS: one directory, or files in their order. No hub is asked."""
    form, root = content_root_of(paths)
    output.result({"content_form": form, "content_root": root.hex()})


@click.command("manifest")
@click.argument("paths", type=_PATH, nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write.")
@output_options
def publication_manifest(output: Output, paths: tuple[Path, ...], out: Path) -> None:
    """Write the list of files behind a content root: path, size and SHA-256 of each. No hub is asked.

    Publish it beside the content. With it `publication verify` names the files that were changed, and checks a single
    file of a directory.

    \b
    veen op publication manifest ./llama --out llama.manifest.json
    """
    from veen.overlays.operations.content import root_of_files

    form, files = content_files(paths)
    rows = [{"path": file.path, "size": file.size, "sha256": file.sha256.hex()} for file in files]
    out.write_text(json.dumps({"content_form": form, "files": rows}, indent=1) + "\n", "utf-8")
    root = root_of_files(form, files)
    output.result({"content_form": form, "content_root": root.hex(), "files": len(files), "out": str(out)})


def _read_manifest(path: Path) -> "tuple[str, list[ContentFile]]":
    from veen.overlays.operations.content import FORMS, ContentFile

    try:
        document = json.loads(path.read_bytes())
        form = document["content_form"]
        if form not in FORMS:
            raise ValueError(f"content_form {form!r}")
        files = [
            ContentFile(str(row["path"]), int(row["size"]), bytes.fromhex(row["sha256"])) for row in document["files"]
        ]
    except (ValueError, KeyError, TypeError) as exc:
        raise Fail(
            "E.LOCAL.INPUT",
            f"{path}: not a manifest of published content",
            str(exc),
            "write one with `veen op publication manifest PATHS --out FILE`",
        ) from exc
    return form, files


VERIFY: Final = (
    click.argument("publication_id", metavar="ID"),
    click.argument("paths", type=_PATH, nargs=-1, required=True),
    click.option(
        "--manifest",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The list of published files that `publication manifest` wrote: names changed files, checks single ones.",
    ),
    click.option("--version", help="The version; default: the one that survives."),
    click.option(
        "--rule",
        type=click.Choice(["latest", "highest"]),
        default="latest",
        show_default=True,
        help="Which version survives: the latest in the log, or the highest semantic version.",
    ),
)


def publication_verify(
    session: CliSession,
    stream: str,
    publication_id: str,
    paths: tuple[Path, ...],
    manifest: Path | None,
    version: str | None,
    rule: Any,
    reading: Reading,
    view: View,
) -> None:
    """Check that PATHS are what was published as ID: every receipt on the way is verified. Exit code 1 if they are not.

    Without a manifest PATHS are everything that was published: one directory, or all files in their order. With
    --manifest they may also be files of a published directory.

    \b
    veen op publication verify models llama ./llama --version v1.2.0
    veen op publication verify models llama ./llama/config.json --manifest llama.manifest.json
    """
    folded = _folded(session, "publication", stream, reading, view)
    ident = id_of(publication_id)
    if version is None:
        current = folded.state.current(ident, rule)
    else:
        entry = folded.state.versions.get((ident, version))
        current = None if entry is None else (version, entry)
    if current is None:
        raise absent(f"publication {publication_id} {version or ''}".rstrip(), f"veen op publication list {stream}")
    name, published = current
    form, files = content_files(paths)
    reasons, root = _compare_content(published, form, files, manifest, paths)
    if version is None and folded.unopened_count:
        what = f"{folded.unopened_count} entries cannot be opened: a later version may be among them"
        reasons.append(Reason(Because.COVERAGE, what))
    verdict = Verdict.of((_coverage(session, cut) for cut in folded.cuts), reasons)
    data = {"publication_id": ident, "version": name, "content_form": form, "content_root": root}
    data |= {"verified": verdict.is_good, **verdict_json(verdict), "msg_id": published.msg_id}

    def human() -> None:
        entry = f"{published.stream_seq}, receipt verified"
        session.output.fields([("version", name), ("content_root", root.hex()), ("entry", entry)])
        show_verdict(session.output, verdict)

    show_folded(session, folded, data, human)
    is_bad = verdict.value is Outcome.BAD
    headline = f"this is NOT version {name} of {publication_id}" if is_bad else f"version {name} of {publication_id}"
    hint = (
        "get the content from its publisher again" if is_bad else "give all of it, or the --manifest of its publisher"
    )
    end_by(verdict, headline, code="PUB.ROOT" if is_bad else None, hint=hint)


def _coverage(session: CliSession, cut: "Cut") -> Coverage:
    """Return what a fold compared of one log. A client reads and verifies a log up to the head that its hub states."""
    return Coverage(
        log=cut.label.hex(),
        read=cut.upto_seq,
        head=cut.upto_seq,
        stated_by=StatedBy.HUB,
        identity=session.settings.hub_pk.value,
    )


def _compare_content(
    published: "Published", form: str, files: "list[ContentFile]", manifest: Path | None, paths: tuple[Path, ...]
) -> tuple[list[Reason], bytes]:
    """Compare content with a publication. Return the reasons against it, and its root."""
    from veen.overlays.operations.content import compare_files, root_of_files

    root = root_of_files(form, files)
    if root == published.content_root:
        return [], root
    metadata = None if published.metadata is None else published.metadata.value
    stated = metadata.get("content_form") if isinstance(metadata, dict) else None
    if manifest is None:
        if stated == form:
            what = f"the content has the root {root.hex()}, the publication {published.content_root.hex()}"
            return [Reason(Because.EVIDENCE, what)], root
        what = f"a {_FORMS.get(str(stated), 'content of unknown form')} was published, a {_FORMS[form]} was given"
        return [Reason(Because.COVERAGE, f"{what}: a part cannot be compared without the manifest")], root
    manifest_form, listed = _read_manifest(manifest)
    if root_of_files(manifest_form, listed) != published.content_root:
        return [Reason(Because.COVERAGE, f"{manifest} is not the manifest of this version")], root
    if form == "list" and manifest_form == "tree":
        return _compare_single(files, listed, paths), root
    difference = compare_files(listed, files)
    reasons = [
        Reason(Because.EVIDENCE, f"{kind}: {path}")
        for kind, changed in zip(difference._fields, difference, strict=True)
        for path in changed
    ]
    return reasons or [Reason(Because.EVIDENCE, "the files are in another order than that of publishing")], root


def _compare_single(files: "list[ContentFile]", listed: "list[ContentFile]", paths: tuple[Path, ...]) -> list[Reason]:
    """Compare files with the files of a published directory.

    Each file is compared with the published file whose path is the longest suffix of its own path. A file given by its
    name alone matches if any published file of that name has its content.
    """
    reasons = []
    for file, path in zip(files, paths, strict=True):
        place = f"/{path.absolute().as_posix()}"
        inside = [entry for entry in listed if place.endswith(f"/{entry.path}")]
        named = [entry for entry in listed if f"/{entry.path}".endswith(f"/{file.path}")]
        candidates = sorted(inside, key=lambda entry: len(entry.path))[-1:] or named
        if not candidates:
            reasons.append(Reason(Because.EVIDENCE, f"added: {path}"))
        elif not any((entry.size, entry.sha256) == (file.size, file.sha256) for entry in candidates):
            reasons.append(Reason(Because.EVIDENCE, f"changed: {path}"))
    return reasons


_FORMS: Final = {"tree": "directory", "list": "list of files"}


def audit_missing(session: CliSession, stream: str, file: str, reading: Reading, view: View) -> None:
    """List accesses in FILE without an audit message. Exit code 6 if there are any (QAUD.MISSING).

    FILE has a JSON object in each line: requester (an identity), resource, and request_time where it must match.

    \b
    veen op audit missing audit accesses.ndjson
    """
    from veen.overlays.operations.queryaudit import missing

    accesses = [_access_of(session, line, number) for number, line in enumerate(_lines(file), start=1)]
    folded = _folded(session, "queryaudit", stream, reading, view)
    unaudited = missing(accesses, folded.state.values())
    rows = [(access.requester, access.resource, access.request_time) for access in unaudited]
    data = {"missing": unaudited, "accesses": len(accesses)}
    show_folded(session, folded, data, lambda: show_table(session, ("requester", "resource", "request_time"), rows))
    if unaudited:
        raise Fail(
            "QAUD.MISSING",
            f"{len(unaudited)} of {len(accesses)} accesses have no audit message",
            "the domain demands a message for every access",
            "ask the service that served them; veen explain QAUD.MISSING",
        )


def _lines(path: str) -> list[str]:
    try:
        return [line for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as exc:
        raise click.UsageError(f"{path} is not UTF-8 text") from exc


def _access_of(session: CliSession, line: str, number: int) -> Any:
    from veen.overlays.operations.queryaudit import AuditedAccess

    try:
        access = json.loads(line)
        at = access.get("request_time")
        if (
            not isinstance(access["requester"], str)
            or not isinstance(access["resource"], str)
            or type(at) not in _TIMES
        ):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise click.UsageError(f"line {number} is no JSON object with requester, resource and request_time") from exc
    return AuditedAccess(principal_of(session, access["requester"]), access["resource"], at)


_TIMES = (int, type(None))
