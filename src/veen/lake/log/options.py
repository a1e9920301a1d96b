"""Options of `format("veen")`, parsed and checked before anything else happens.

Options appear in plans, logs and the Spark UI: secrets are named by a path, and read where they are used.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from veen.core.errors import VeenError
from veen.core.labels import stream_id_of
from veen.lake.log.entries import LEVELS, Level
from veen.lake.log.errors import OptionError
from veen.lake.log.keys import KeyFile
from veen.lake.log.slices import Selection

HUB: Final = {
    "hub": "the URL of a hub, instead of a path: http:// or https://",
    "hubkey": "the hub's key, pinned: ed25519:HEX; or the root of an ephemeral hub: root:ed25519:HEX",
    "hubid": "the hub_id that goes with hubKey, in hex: another one is refused (`veen context show` tells it)",
    "cafile": "path of the certificates to trust, in place of the system's",
    "clientcert": "path of a certificate that says who calls",
    "clientkey": "path of its key",
    "tokenfile": "path of a file that holds a bearer token",
    "insecurehttp": "whether a token may go to another machine over plain http:// (default false)",
    "timeout": "seconds in which a request is answered (default 30)",
    "patience": "seconds for which a hub that is away is asked again (default 60)",
}
KNOWN: Final = {
    "path": "the data directory: a path, or a URL that Arrow can read",
    **HUB,
    "stream": "one stream: its name, or its id as hex:…",
    "label": "one label, in hex",
    "fromseq": "the first stream_seq",
    "toseq": "the last stream_seq",
    "fromtime": "the first hub_ts: seconds, or ISO-8601",
    "totime": "the last hub_ts",
    "verify": "none, hash (default), receipt or full",
    "columns": "lean (default), all, or names with commas between them",
    "keys": "path of a key file on executors: rows are opened, with schema and payload",
    "ondamage": "row (default): a damaged entry is a row with ok = false; fail: stop at the first",
    "maxentriespertrigger": "how many entries one micro-batch may take",
    "failondataloss": "whether a stream stops when entries it has not read are gone (default true)",
    "partitionbytes": "how many bytes of log one task reads (default 64 MiB)",
    "pushfilters": "whether filters choose chunks (default false): only for a DataFrame that one query reads, once",
}
WRITING: Final = {
    **HUB,
    "stream": "the stream to write to: its name, or its id as hex:…",
    "identity": "path of the directory of an identity, which holds keystore.enc",
    "passphrasefile": "path of a file that holds the passphrase of the keystore",
    "schema": "the schema of bodies whose rows name none",
    "receipts": "where to put the receipts: a Parquet dataset",
    "writeid": "a name for this write: writing the same rows again under it doubles nothing",
    "writetime": "when a write of this name was first begun, where labels rotate: seconds, or ISO-8601",
    "batch": "messages in one request (default 256)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """Address and pin of a hub. Small and without secrets: it travels to executors."""

    url: str
    pin: str | None = None
    hub_id: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    token_file: str | None = None
    insecure_http: bool = False
    timeout: int = 30
    patience: int = 60

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse options whose names are in lower case."""
        url = options["hub"]
        if urlsplit(url).username or urlsplit(url).password:
            raise OptionError("the URL of a hub must not hold credentials, since plans show it: use tokenFile")
        if "hubid" in options and "hubkey" not in options:
            raise OptionError("hubId requires a pinned key: add .option('hubKey', 'ed25519:HEX')")
        return cls(
            url=url.rstrip("/"),
            pin=options.get("hubkey"),
            hub_id=options.get("hubid"),
            ca_file=options.get("cafile"),
            client_cert=options.get("clientcert"),
            client_key=options.get("clientkey"),
            token_file=options.get("tokenfile"),
            insecure_http=_parse_flag(options, "insecurehttp", default=False),
            timeout=_parse_number(options, "timeout", 30) or 1,
            patience=_parse_number(options, "patience", 60) or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a reader."""

    path: str | None  # or
    hub: HubAddress | None  # exactly one of them
    selection: Selection
    level: Level = "hash"
    fail_fast: bool = False
    max_entries: int | None = None
    fail_on_data_loss: bool = True
    partition_bytes: int = 64 * 1024 * 1024
    push_filters: bool = False
    columns: str = "lean"  # lean, all, or names
    keys: KeyFile | None = None  # a path; the file is read where rows are made

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse options; names in any case. Refuse unknown names, which would silently have no effect."""
        options = _lower_names(given, KNOWN)
        if not options:
            raise OptionError(
                "give the data directory: spark.read.format('veen').load(PATH), or in SQL CREATE TEMPORARY VIEW … "
                "USING veen OPTIONS (path '…'). Spark gives a Python source no option of CREATE TABLE … USING veen, "
                "so such a table cannot be read"
            )
        if ("path" in options) == ("hub" in options):
            raise OptionError("give the data directory, .load(PATH), or a hub, .option('hub', URL), and not both")
        if "path" in options and (strange := sorted(set(options) & set(HUB))):
            raise OptionError(f"{', '.join(strange)}: only for reading from a hub")
        level = options.get("verify", "hash")
        if level not in LEVELS:
            raise OptionError(f"verify is {level!r}; it may be {', '.join(LEVELS)}")
        damage = options.get("ondamage", "row")
        if damage not in ("row", "fail"):
            raise OptionError(f"onDamage is {damage!r}; it may be row or fail")
        hub = HubAddress.of(options) if "hub" in options else None
        if hub is not None and hub.pin is None and level in ("receipt", "full"):
            raise OptionError(f"verify = {level} holds a hub to its key: pin it with .option('hubKey', 'ed25519:HEX')")
        return cls(
            path=options.get("path"),
            hub=hub,
            selection=Selection(
                labels=frozenset((_parse_label(options["label"]),)) if "label" in options else None,
                streams=frozenset((_parse_stream(options["stream"]),)) if "stream" in options else None,
                first_seq=_parse_number(options, "fromseq", 1),
                last_seq=_parse_number(options, "toseq", None),
                first_ts=seconds_of(options["fromtime"]) if "fromtime" in options else None,
                last_ts=seconds_of(options["totime"]) if "totime" in options else None,
            ),
            level=level,
            fail_fast=damage == "fail",
            max_entries=_parse_number(options, "maxentriespertrigger", None),
            fail_on_data_loss=_parse_flag(options, "failondataloss", default=True),
            partition_bytes=_parse_number(options, "partitionbytes", 64 * 1024 * 1024) or 1,
            push_filters=_parse_flag(options, "pushfilters", default=False),
            columns=options.get("columns", "lean"),
            keys=_parse_key_file(options["keys"]) if "keys" in options else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a writer."""

    hub: HubAddress
    stream: str
    identity: str
    passphrase_file: str | None = None
    schema: str | None = None
    receipts: str | None = None
    write_id: str | None = None
    write_time: int | None = None
    batch: int = 256

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        options = _lower_names(given, WRITING)
        for name, what in (("hub", "URL"), ("hubkey", "ed25519:HEX"), ("stream", "NAME"), ("identity", "DIRECTORY")):
            if name not in options:
                spelled = {"hubkey": "hubKey"}.get(name, name)
                raise OptionError(f"writing needs .option({spelled!r}, {what!r}): {WRITING[name]}")
        _parse_stream(options["stream"])
        return cls(
            hub=HubAddress.of(options),
            stream=options["stream"],
            identity=options["identity"],
            passphrase_file=options.get("passphrasefile"),
            schema=options.get("schema"),
            receipts=options.get("receipts"),
            write_id=options.get("writeid"),
            write_time=seconds_of(options["writetime"]) if "writetime" in options else None,
            batch=_parse_number(options, "batch", 256) or 1,
        )


def _lower_names(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    if unknown := sorted(set(options) - set(known)):
        raise OptionError(f"unknown option {', '.join(unknown)}; options: {', '.join(sorted(known))}")
    return options


def _parse_key_file(path: str) -> KeyFile:
    if not Path(path).is_absolute():
        raise OptionError(f"keys is {path!r}: give an absolute path, since executors run in directories of their own")
    return KeyFile(path)


def _parse_label(text: str) -> bytes:
    try:
        label = bytes.fromhex(text.removeprefix("label:"))
    except ValueError:
        label = b""
    if len(label) != 32:
        raise OptionError(f"label {text!r} is not 64 hex digits")
    return label


def _parse_stream(text: str) -> bytes:
    try:
        return stream_id_of(text.removeprefix("hex:"))
    except VeenError as exc:
        raise OptionError(f"stream {text!r}: {exc}") from exc


def _parse_number(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in options:
        return default
    try:
        value = int(options[name])
    except ValueError:
        value = -1
    if value < 0:
        raise OptionError(f"{name} is {options[name]!r}, which is not a count")
    return value


def _parse_flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} is {value!r}; it may be true or false")
    return value == "true"


def seconds_of(text: str) -> int:
    """Parse a time: seconds since 1970, or ISO-8601 (UTC if it has no zone)."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise OptionError(f"{text!r} is not a time: expected seconds or ISO-8601") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
