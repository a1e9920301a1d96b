"""The commands of `veen op` that write: options from the fields of the table, one message, and whether it counts."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.op.args import Reading, account_of, stream_id_of
from veen.cli.op.verbs import OpField, OpNoun, OpVerb
from veen.cli.shared.authority import authorized, read_token
from veen.cli.shared.command import CliSession
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.identities import principal_of
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.output import Exit, Fail
from veen.cli.shared.overlay_commands import drafted
from veen.cli.shared.overlay_values import HEX32, json_value
from veen.cli.shared.values import MOMENT, SPAN

if TYPE_CHECKING:
    from veen.core.objects.captoken import CapToken
    from veen.overlays.framework.body import Draft
    from veen.overlays.operations.content import ContentFile

_CHUNK: Final = 1 << 20
_TYPES: Final[Mapping[str, Any]] = {
    "reference": HEX32,
    "stream": STREAM,
    "terms": click.Path(exists=True, dir_okay=False),
    "uint": click.IntRange(min=0, max=2**64 - 1),
    "time": MOMENT,
    "span": SPAN,
}
_CHAIN: Final = click.option(
    "--chain",
    type=OBJECT_FILE,
    multiple=True,
    help="A token of the chain from the principal to you, in order. Repeatable.",
)
_METAVARS: Final = {"identity": "IDENTITY", "account": "ACCOUNT", "id": "ID", "json": "JSON"}


def add_verb(group: NounGroup, noun: OpNoun, name: str, verb: OpVerb) -> None:
    """Add a verb of the table to its group: options from its fields, and a message whose body they become."""
    parameters = [_parameter(field_name, field) for field_name, field in verb.fields.items()]
    if verb.schema.endswith(":GRANT"):
        parameters.append(click.option("--no-token", is_flag=True, help="Mint no token: only the message."))
        parameters.append(click.option("--token-out", type=click.Path(path_type=Path), help="Write the token here."))
    if verb.embeddable:
        parameters.append(_CHAIN)
        parameters.append(click.option("--principal", metavar="IDENTITY", help="Do it as an agent of this identity."))

    @group.write(name, verb.help, *parameters, text=f"{verb.help}\n\n\b\n{verb.example}")
    def _write(session: CliSession, stream: str, reading: Reading, **values: Any) -> Outgoing:
        return _outgoing(session, noun, verb, stream, reading, **values)


def _parameter(name: str, field: OpField) -> Callable[[Any], Any]:
    kind = click.Choice(field.choices) if field.choices else _TYPES.get(field.kind, str)
    if field.positional:
        metavar = None if field.choices else name.upper() + ("..." if field.many else "")
        return click.argument(name, type=kind, nargs=-1 if field.many else 1, required=field.required, metavar=metavar)
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        type=kind,
        multiple=field.many,
        required=field.required,
        metavar=_METAVARS.get(field.kind),
        help=field.help,
    )


def _outgoing(
    session: CliSession,
    noun: OpNoun,
    verb: OpVerb,
    stream: str,
    reading: Reading,
    *,
    principal: str | None = None,
    chain: Sequence[Path] = (),
    token_out: Path | None = None,
    no_token: bool = True,
    **values: Any,
) -> Outgoing:
    from veen.overlays.operations.common import operation_id_of

    fields = {name: _value(session, verb.fields[name], value) for name, value in values.items()}
    if verb.make is not None:
        fields = _load(verb.make)(session, fields, None if principal is None else principal_of(session, principal))
    body, draft = drafted(lambda: _draft(verb, fields))
    if principal is None and chain:
        raise click.UsageError("--chain is for --principal")
    streams = reading.streams(stream)
    return Outgoing(
        stream,
        (lambda: draft) if principal is None else (lambda: _delegated(session, draft, principal, chain)),
        lambda sent: {"stream": stream, "operation_id": operation_id_of(sent.msg_id)},
        fold=lambda: reading.fold(session, noun.fold, streams),
        streams=streams,
        after=lambda state: {} if no_token else _minted(session, body, token_out),
        by_name=True,
    )


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _draft(verb: OpVerb, fields: Mapping[str, Any]) -> "tuple[Any, Draft]":
    from veen.overlays.operations.paid import PaidOperation, pay

    schema = _load(verb.schema)
    body = schema.body(**fields)
    return body, pay(body, now=int(time.time())) if isinstance(body, PaidOperation) else schema.draft(body)


def _value(session: CliSession, field: OpField, value: Any) -> Any:
    if field.many:
        values = [_item(session, field, item) for item in value]
        if field.kind == "stream":
            values = sorted(set(values))
        return tuple(values) or None
    return None if value is None else _item(session, field, value)


def _item(session: CliSession, field: OpField, value: Any) -> Any:
    match field.kind:
        case "identity":
            return principal_of(session, value)
        case "account":
            return account_of(session, value)
        case "id":
            return id_of(value)
        case "stream":
            return stream_id_of(value)
        case "terms":
            return _digest(Path(value))[1]
        case "json":
            return json_value(value)
        case _:
            return value


def id_of(text: str) -> bytes:
    """64 hex digits, or a name and its hash."""
    from veen.core.hashing import H

    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    return data if len(data) == 32 else H(text.encode())


def _agent(session: CliSession, chain: "Sequence[CapToken]") -> bytes:
    """Return who acts: the principal in use, unless the last token of the chain names its client key."""
    identity = session.keystore.identity
    is_for_key = bool(chain) and chain[-1].subject_pk == identity.client_id
    return identity.client_id if is_for_key else identity.id_sign_pk


def _delegated(session: CliSession, draft: "Draft", principal: str, chain: Sequence[Path]) -> "Draft":
    """The tokens are shown to the hub, so that readers can resolve the chain there (D-139)."""
    from veen.overlays.operations.delegation import delegate

    tokens = [read_token(path) for path in chain]
    wrapped = delegate(
        draft,
        principal=principal_of(session, principal),
        agent=_agent(session, tokens),
        chain=[token.auth_ref() for token in tokens],
    )
    for token in tokens:
        authorized(session, token)
    return wrapped


def _minted(session: CliSession, body: Any, out: Path | None) -> Mapping[str, Any]:
    """The token of a grant that counts, by the long-term key of the granter, known to the hub from now on (D-91)."""
    from veen.client.errors import HubRefused
    from veen.overlays.operations.access import token_for

    token = token_for(body, session.keystore.identity.id_sign, now=int(time.time()))
    if out is not None:
        out.write_bytes(token.to_bytes())
    try:
        authorized(session, token)
    except HubRefused as exc:
        raise Fail(
            exc.code,
            "the grant stands in the log, and the hub does not take its token",
            str(exc),
            "the hub must trust your long-term key as an issuer; or write the message alone, with --no-token",
            exit_code=Exit.REFUSED,
        ) from exc
    return {"auth_ref": token.auth_ref(), "ttl": token.allow.ttl}


# --- fields that are derived ---------------------------------------------------------------------------------------


def payer(session: CliSession, fields: dict[str, Any], principal: bytes | None) -> dict[str, Any]:
    """Whoever pays, pays from the account of the one who speaks, unless another is named."""
    from veen.overlays.operations.common import account_id_of

    owner = principal_of(session, None) if principal is None else principal
    return {**fields, "payer_account": fields["payer_account"] or account_id_of(owner)}


def _speaker(name: str, session: CliSession, fields: dict[str, Any], principal: bytes | None) -> dict[str, Any]:
    return {**fields, name: fields[name] or principal or principal_of(session, None)}


def party(session: CliSession, fields: dict[str, Any], principal: bytes | None) -> dict[str, Any]:
    return _speaker("party_identity", session, fields, principal)


def approver(session: CliSession, fields: dict[str, Any], principal: bytes | None) -> dict[str, Any]:
    return _speaker("approver_identity", session, fields, principal)


def content(session: CliSession, fields: dict[str, Any], principal: bytes | None) -> dict[str, Any]:
    """Paths become content_root, and metadata says in which form it was made (D-157)."""
    fields = _speaker("publisher_identity", session, fields, principal)
    metadata = fields["metadata"] if fields["metadata"] is not None else {}
    if not isinstance(metadata, dict):
        raise click.UsageError("--metadata of a publication is a JSON object")
    form, root = content_root_of([Path(path) for path in fields.pop("paths")])
    return {**fields, "content_root": root, "metadata": {**metadata, "content_form": form}}


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
    return "list", [ContentFile(path.name, *_digest(path)) for path in paths]


def _files(root: Path) -> "Iterator[ContentFile]":
    from veen.overlays.operations.content import ContentFile

    for directory, names, files in os.walk(root, onerror=_raise):
        for name in sorted((*names, *files)):
            path = Path(directory, name)
            if path.is_symlink():
                raise _no_file(path)
        for name in files:
            path = Path(directory, name)
            size, digest = _digest(path)
            yield ContentFile(path.relative_to(root).as_posix(), size, digest)


def _raise(error: OSError) -> None:
    """os.walk passes over directories that it cannot read; a root without them would be another one."""
    raise error


def _digest(path: Path) -> tuple[int, bytes]:
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
