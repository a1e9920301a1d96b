"""The commands of `veen op` that write: for a principal too, and with the token that a grant mints."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.op.args import OpPlace
from veen.cli.shared.authority import authorize_token, read_token
from veen.cli.shared.command import CliSession
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.nouns import MakePlace, Outgoing, Parameter, message_of, noun_of, send
from veen.cli.shared.output import Exit, Fail, Output
from veen.cli.shared.people import principal_of

if TYPE_CHECKING:
    from veen.core.objects.captoken import CapToken
    from veen.overlays.framework.schema import Draft
    from veen.overlays.operations.content import ContentFile

_CHUNK: Final = 1 << 20
_CHAIN: Final = click.option(
    "--chain",
    type=OBJECT_FILE,
    multiple=True,
    help="A token of the chain from the principal to you, in order. Repeatable.",
)
_PRINCIPAL: Final = click.option("--principal", metavar="IDENTITY", help="Do it as an agent of this identity.")
_TOKEN: Final = (
    click.option("--no-token", is_flag=True, help="Mint no token: only the message."),
    click.option("--token-out", type=click.Path(path_type=Path), help="Write the token here."),
)
GRANTS: Final = ("grant", "allow")  # verbs whose message mints a token
DIRECT: Final = ("record",)  # verbs that no agent does for a principal: a statement of one key


def options_of(verb: str) -> Sequence[Parameter]:
    """Return the options that a verb has beside its values."""
    return (*(_TOKEN if verb in GRANTS else ()), *(() if verb in DIRECT else (_CHAIN, _PRINCIPAL)))


def write_operation(
    name: str,
    noun: str,
    make_place: MakePlace,
    output: Output,
    session: CliSession,
    /,
    *,
    cap: Path | None,
    chain: Sequence[Path] = (),
    token_out: Path | None = None,
    no_token: bool = True,
    **given: Any,
) -> None:
    """Send an operation, as an agent where `principal` is given, and say whether it counts."""
    from veen.overlays.operations.common import operation_id_of

    principal, declared = given.get("principal"), noun_of(noun)
    place = make_place(declared, given)
    assert isinstance(place, OpPlace)  # noqa: S101 - of `veen op`
    if "paths" in given:
        given["paths"] = (content_root_of([Path(path) for path in given["paths"]]),)
    message = message_of(session, place, declared.verb(name), given)
    if principal is None and chain:
        raise click.UsageError("--chain is for --principal")
    outgoing = Outgoing(
        place.stream,
        (lambda: message.draft)
        if principal is None
        else (lambda: _delegated(session, message.draft, principal, chain)),
        lambda sent: {"stream": place.stream, "operation_id": operation_id_of(sent.msg_id)},
        fold=lambda: place.fold(session),
        streams=place.streams(session),
        after=lambda state: {} if no_token else _minted(session, message.body, token_out),
        by_name=True,
    )
    send(session, outgoing, cap)


def _agent(session: CliSession, chain: "Sequence[CapToken]") -> bytes:
    """Return who acts: the principal in use, unless the last token of the chain names its client key."""
    identity = session.keystore.identity
    is_for_key = bool(chain) and chain[-1].subject_pk == identity.client_id
    return identity.client_id if is_for_key else identity.id_sign_pk


def _delegated(session: CliSession, draft: "Draft", principal: str, chain: Sequence[Path]) -> "Draft":
    """Show the tokens to the hub, so that readers can resolve the chain there (D-139)."""
    from veen.overlays.operations.delegation import delegate

    tokens = [read_token(path) for path in chain]
    wrapped = delegate(
        draft,
        principal=principal_of(session, principal),
        agent=_agent(session, tokens),
        chain=[token.auth_ref() for token in tokens],
    )
    for token in tokens:
        authorize_token(session, token)
    return wrapped


def _minted(session: CliSession, body: Any, out: Path | None) -> Mapping[str, Any]:
    """Issue the token of a valid grant with the long-term key of the granter, and show it to the hub (D-91)."""
    from veen.client.errors import HubRefused
    from veen.overlays.operations.access import token_for

    token = token_for(body, session.keystore.identity.id_sign, now=int(time.time()))
    if out is not None:
        out.write_bytes(token.to_bytes())
    try:
        authorize_token(session, token)
    except HubRefused as exc:
        raise Fail(
            exc.code,
            "the grant stands in the log, and the hub does not take its token",
            str(exc),
            "the hub must trust your long-term key as an issuer; or write the message alone, with --no-token",
            exit_code=Exit.REFUSED,
        ) from exc
    return {"auth_ref": token.auth_ref(), "ttl": token.allow.ttl}


# --- content of files and directories ------------------------------------------------------------------------------


def content_root_of(paths: Sequence[Path]) -> tuple[str, bytes]:
    """Return the form and the content root of paths."""
    from veen.overlays.operations.content import root_of_files

    form, files = content_files(paths)
    return form, root_of_files(form, files)


def content_files(paths: Sequence[Path]) -> "tuple[str, list[ContentFile]]":
    """Read the files of paths. A directory alone is a tree; files are a list, in the order given.

    Links are refused, as they lead elsewhere.
    """
    from veen.overlays.operations.content import ContentFile

    if len(paths) == 1 and paths[0].is_dir() and not paths[0].is_symlink():
        return "tree", list(_files(paths[0]))
    return "list", [ContentFile(path.name, *digest_of(path)) for path in paths]


def _files(root: Path) -> "Iterator[ContentFile]":
    from veen.overlays.operations.content import ContentFile

    for directory, names, files in os.walk(root, onerror=_raise):
        for name in sorted((*names, *files)):
            path = Path(directory, name)
            if path.is_symlink():
                raise _no_file(path)
        for name in files:
            path = Path(directory, name)
            size, digest = digest_of(path)
            yield ContentFile(path.relative_to(root).as_posix(), size, digest)


def _raise(error: OSError) -> None:
    """os.walk passes over directories that it cannot read; a root without them would be another one."""
    raise error


def digest_of(path: Path) -> tuple[int, bytes]:
    if path.is_symlink() or not path.is_file():
        raise _no_file(path)
    size, digest = 0, sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return size, digest.digest()


def _no_file(path: Path) -> Fail:
    return Fail(
        "E.LOCAL",
        f"{path}: no file",
        "content is one directory, or files; symbolic links and devices are not content",
        "give the files themselves, or a directory without links",
    )
