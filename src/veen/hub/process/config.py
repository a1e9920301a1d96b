"""The configuration of a hub: one schema for files, environment and flags (DESIGN §3).

A flag beats a variable, a variable beats the file, the file beats the default; `HubConfig.origins` remembers who won.
The dataclasses below are the schema: a key is the path of a field, `listen.port`; its variable is `VEEN_LISTEN_PORT`.
Secrets never stand in a configuration, only the paths of the files that hold them.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_type_hints

from veen import native
from veen.core.errors import FormatError, LimitError, MalformedError, VeenError
from veen.core.limits import COMPRESSIONS, DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import realm_id_of
from veen.core.objects.profile import PRESETS, Profile
from veen.hub.admission.policy import Auth1, Kex1, Policy
from veen.hub.process.settings import (
    ADDRESS,
    BOOLEAN,
    DURATION,
    HEX32,
    ISSUERS,
    NETWORK,
    PATH,
    PROFILES,
    REALM,
    SIZE,
    STREAM,
    TEXT,
    WATCHED_STREAMS,
    WORKERS,
    Issuer,
    Kind,
    Network,
    choice,
    integer,
    list_of,
)
from veen.io.addresses import is_loopback
from veen.io.local import mode_of
from veen.io.nats_link import NatsAddress

_MIN_TOKEN_CHARS: Final = 16
_MAX_FILE_BYTES: Final = 1 << 20


class ConfigError(VeenError, code="E.CONFIG"):
    """A configuration that a hub cannot start from. It names the source, the fault and the remedy."""

    def __init__(self, source: str, key: str, what: str, remedy: str = "") -> None:
        super().__init__(source, key, what, remedy)
        self.source, self.key, self.what, self.remedy = source, key, what, remedy or self.hint

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.what) if part)


class Key(NamedTuple):
    """The schema of one field."""

    kind: Kind
    about: str
    restart: bool = False  # a change waits for the next start; otherwise a reload applies it


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    host: Annotated[str, Key(TEXT, "Address to listen on.", restart=True)] = "127.0.0.1"
    port: Annotated[int, Key(integer(0, 65_535), "Port to listen on; 0 takes a free one.", restart=True)] = 8080
    max_connections: Annotated[
        int, Key(integer(1, 1_000_000), "Connections at a time, as far as file descriptors allow; more get 503.")
    ] = 4_096
    address_percent: Annotated[
        int,
        Key(
            integer(1, 100),
            "Percent of connections, and of memory for bodies and answers, for one address; 100 behind a proxy.",
        ),
    ] = 25
    max_answer_bytes: Annotated[
        int, Key(SIZE, "Large answers, in bytes, that clients have not read yet; more reads get 503.")
    ] = 256 << 20
    max_event_stream_seconds: Annotated[
        int,
        Key(DURATION, "Age after which an event stream ends and its client connects again; 0: never.", restart=True),
    ] = 3600
    denied_networks: Annotated[tuple[Network, ...], Key(list_of(NETWORK), "Networks that are refused outright.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    cert: Annotated[Path | None, Key(PATH, "Certificate chain (PEM). With it the hub speaks TLS only.")] = None
    key: Annotated[Path | None, Key(PATH, "Private key of the certificate (PEM), mode 0600.")] = None
    client_ca: Annotated[Path | None, Key(PATH, "Demand client certificates signed by these (PEM).")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Access to reading and to administration, beside the decisions of admission about submits."""

    admin_token_files: Annotated[
        tuple[Path, ...],
        Key(list_of(PATH), "Files with a bearer token each that opens administration. None: nobody may."),
    ] = ()
    read_token_files: Annotated[
        tuple[Path, ...],
        Key(list_of(PATH), "Files with a bearer token each that opens reading. None: anybody may read ciphertext."),
    ] = ()
    admin_names: Annotated[
        tuple[str, ...], Key(list_of(TEXT), "Names in client certificates that open administration.")
    ] = ()
    read_names: Annotated[tuple[str, ...], Key(list_of(TEXT), "Names in client certificates that open reading.")] = ()
    metrics_token_files: Annotated[
        tuple[Path, ...],
        Key(list_of(PATH), "Files with a bearer token each that opens metrics, status and the details of health only."),
    ] = ()
    metrics_names: Annotated[
        tuple[str, ...], Key(list_of(TEXT), "Names in client certificates that open the same as metrics_token_files.")
    ] = ()
    open_status: Annotated[
        bool, Key(BOOLEAN, "Show /tooling/status to anybody although readers are named, for writers without a token.")
    ] = False
    read_bytes_per_second: Annotated[
        int, Key(SIZE, "How fast each reader is served, by its credentials or else its address; 0: as fast as it goes.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The settings that become the `Policy` of the hub."""

    profiles: Annotated[
        tuple[Profile, ...], Key(PROFILES, "Supported profiles; all share one epoch_sec (D-25).", restart=True)
    ] = (
        PRESETS["messaging"],
        PRESETS["bulk"],
    )
    capability_gating: Annotated[bool, Key(BOOLEAN, "Refuse messages without a capability (D-52).")] = True
    stream_scope: Annotated[
        Literal["enforced", "open"],
        Key(choice("enforced", "open"), "open accepts any label, without rotation only (D-24).", restart=True),
    ] = "enforced"
    trusted_issuers: Annotated[
        tuple[Issuer, ...], Key(ISSUERS, 'Whose tokens count, optionally for some streams; "*" for anybody (D-45).')
    ] = ()
    principal_grants: Annotated[
        bool, Key(BOOLEAN, "Let the subject of a trusted token issue tokens for its own client keys (D-179).")
    ] = True
    token_files: Annotated[
        tuple[Path, ...], Key(list_of(PATH), "Capability tokens known from the start (CBOR files).")
    ] = ()
    streams: Annotated[tuple[bytes, ...], Key(list_of(STREAM), "Streams known from the start, by name or id.")] = ()
    denied_clients: Annotated[tuple[bytes, ...], Key(list_of(HEX32), "Client keys that are refused outright.")] = ()
    pow_difficulty: Annotated[int, Key(integer(0, 40), "Proof of work before each submit, in zero bits; 0: none.")] = 0
    kex1_plus: Annotated[bool, Key(BOOLEAN, "Enforce revocations and the bounds of client keys (KEX1+, D-51).")] = False
    max_client_id_lifetime_sec: Annotated[
        int, Key(integer(1, 86_400), "With kex1_plus: seconds from a client key's first message to its last.")
    ] = 86_400
    max_msgs_per_client_id_per_label: Annotated[
        int, Key(integer(1, 65_536), "With kex1_plus: messages of a client key in one label.")
    ] = 65_536
    auth1: Annotated[bool, Key(BOOLEAN, "Admit only to streams this hub is a primary of (AUTH1, D-101).")] = False
    realm: Annotated[bytes, Key(REALM, "With auth1: the realm of all streams of this hub, by name or id.")] = (
        realm_id_of("default")
    )
    unspecified_authority: Annotated[
        Literal["accept", "refuse"],
        Key(choice("accept", "refuse"), "With auth1: what becomes of streams without an active authority record."),
    ] = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    workers: Annotated[
        int | None,
        Key(
            WORKERS,
            "Verifiers: processes, auto one per spare core; with the native module threads, one per core. 0: none.",
            restart=True,
        ),
    ] = None
    max_queue: Annotated[
        int, Key(integer(1, 1_000_000), "Messages in flight before the hub answers 503.", restart=True)
    ] = 4_096
    cached_labels: Annotated[
        int,
        Key(integer(1, 100_000_000), "Labels, and capabilities, whose saved cursors stay in memory.", restart=True),
    ] = 10_000
    cached_clients: Annotated[
        int,
        Key(
            integer(1, 1_000_000_000),
            "Clients, each counted once per label, whose saved cursors stay in memory.",
            restart=True,
        ),
    ] = 100_000
    min_free_bytes: Annotated[int, Key(SIZE, "Free disk space below which submits are answered 503.")] = 256 << 20
    max_clock_step: Annotated[
        int, Key(DURATION, "Forward jump of the clock that needs `--accept-clock`; 0: none does.", restart=True)
    ] = 3_600
    retire_seconds: Annotated[int, Key(DURATION, "Empty the journal into the chunks after this long; 0: never.")] = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    level: Annotated[
        str, Key(choice("debug", "info", "warning", "error", warn="warning"), "The least level that is logged.")
    ] = "info"
    format: Annotated[str, Key(choice("auto", "json", "text"), "auto: text on a terminal, JSON otherwise.")] = "auto"
    submits: Annotated[
        str,
        Key(
            choice("all", "sampled", "errors", "off"), "Which submits get a line; sampled is one in 100 and all errors."
        ),
    ] = "all"
    file: Annotated[Path | None, Key(PATH, "Append to this file instead of writing to standard error.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    streams: Annotated[
        tuple[str, ...],
        Key(
            WATCHED_STREAMS,
            "Streams, by name or id, that veen_appends_total counts one by one, at most 100; others are one number.",
            restart=True,
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    payloads: Annotated[int, Key(DURATION, "Age after which sealed payloads are erased; 0: never. Receipts stay.")] = 0
    receipts: Annotated[int, Key(DURATION, "Age after which archived receipts are erased; 0: never.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPolicy:
    client_bytes: Annotated[
        int, Key(SIZE, "Attachment bytes kept for one client key, over all its capabilities; 0: no bound.")
    ] = 1 << 30
    open_bytes: Annotated[
        int, Key(SIZE, "Attachment bytes kept of uploads without a capability, all together; 0: no bound.")
    ] = 16 << 30
    bytes_per_token: Annotated[
        int, Key(SIZE, "An upload takes one token of its capability's rate for each of these bytes begun; 0: none.")
    ] = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    every: Annotated[int, Key(DURATION, "How often labels that grew are anchored; 0: only when asked (D-104).")] = 0
    backend: Annotated[
        Literal["file", "rfc3161"],
        Key(
            choice("file", "rfc3161"),
            "Where roots are anchored: a hash-chained file, or a timestamp authority.",
            restart=True,
        ),
    ] = "file"
    directory: Annotated[
        Path | None,
        Key(PATH, "With file: where the chain is; default: the data directory. Best another disk.", restart=True),
    ] = None
    url: Annotated[str, Key(TEXT, "With rfc3161: the address of the timestamp authority.", restart=True)] = ""
    certificates: Annotated[
        Path | None,
        Key(PATH, "With rfc3161: the authority's root and its own certificate, in one PEM file.", restart=True),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The outer log: a list of checkpoints that witnesses cosign (D-172)."""

    origin: Annotated[
        str,
        Key(
            TEXT, "Name of the outer log, such as hub.example/veen; empty: no outer log. Never change it.", restart=True
        ),
    ] = ""
    every: Annotated[int, Key(DURATION, "How often labels that grew are listed and a note is signed.")] = 60
    policy: Annotated[
        Path | None, Key(PATH, "A tlog-policy file: each of its witnesses that has a URL is asked to cosign.")
    ] = None
    witness_timeout: Annotated[
        int, Key(DURATION, "How long a note waits for cosignatures; it goes out without those that are late.")
    ] = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub:
    bytes_per_second: Annotated[int, Key(SIZE, "How fast sealed chunks are read again and checked; 0: never.")] = (
        1 << 20
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolConfig:
    """Calls as files (docs/transports.md)."""

    directory: Annotated[
        Path | None,
        Key(PATH, "Serve calls as files in this directory, which others cannot enter; none: no spool.", restart=True),
    ] = None
    max_age: Annotated[
        int, Key(DURATION, "Age after which a request is rejected and a response removed.", restart=True)
    ] = 86_400
    max_bytes: Annotated[
        int, Key(SIZE, "Responses, and rejected files, in bytes; the oldest are removed first.", restart=True)
    ] = 1 << 30
    max_calls: Annotated[int, Key(integer(1, 100_000), "Calls by files at a time; more wait.", restart=True)] = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """Calls over NATS (docs/transports.md)."""

    url: Annotated[
        str, Key(TEXT, "Serve calls over this NATS server, nats://HOST:PORT; empty: no NATS.", restart=True)
    ] = ""
    credentials_file: Annotated[
        Path | None, Key(PATH, "One line USER:PASSWORD, or a NATS credentials file, mode 0600.", restart=True)
    ] = None
    ca_file: Annotated[
        Path | None, Key(PATH, "Demand TLS of the NATS server, and trust only these certificates (PEM).", restart=True)
    ] = None
    submit: Annotated[
        bool, Key(BOOLEAN, "Answer submit.LABEL as well; not where several hubs share a NATS account.", restart=True)
    ] = True
    tail: Annotated[
        bool, Key(BOOLEAN, "Publish new entries, sealed, to tail.LABEL for whoever may subscribe.", restart=True)
    ] = False
    max_calls: Annotated[int, Key(integer(1, 100_000), "Calls over NATS at a time; more get 503.", restart=True)] = (
        1_024
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicConfig:
    """Calls over QUIC (docs/transports.md)."""

    enabled: Annotated[
        bool, Key(BOOLEAN, "Serve calls over QUIC as well, at listen.host, with tls.cert and tls.key.", restart=True)
    ] = False
    port: Annotated[int, Key(integer(0, 65_535), "UDP port to listen on; 0 takes a free one.", restart=True)] = 8080
    max_connections: Annotated[
        int, Key(integer(1, 1_000_000), "QUIC connections at a time; more get no answer.", restart=True)
    ] = 1_024
    max_calls: Annotated[int, Key(integer(1, 100_000), "Calls over QUIC at a time; more get 503.", restart=True)] = (
        1_024
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The configuration of a hub. Fixed while it runs, but for the keys that a reload may change."""

    data_dir: Annotated[Path, Key(PATH, "The data directory. Required.", restart=True)]
    keys_dir: Annotated[
        Path | None,
        Key(
            PATH, "Where the private keys are, if not in the data directory; they must exist then (D-42).", restart=True
        ),
    ] = None
    identity: Annotated[
        Literal["durable", "ephemeral"],
        Key(
            choice("durable", "ephemeral"),
            "ephemeral: keys_dir has the root key, and each blank start makes a hub key that it signs (D-121).",
            restart=True,
        ),
    ] = "durable"
    role: Annotated[
        str, Key(choice("authority", "tenant"), "An authority never invents its identity (spec-4).", restart=True)
    ] = "tenant"
    universe_id: Annotated[str, Key(TEXT, "The deployment this hub belongs to.")] = ""
    tenant_id: Annotated[str, Key(TEXT, "The tenant this hub serves; every line of the log names it.")] = ""
    authority_id: Annotated[str, Key(TEXT, "A stable name of this authority.")] = ""
    authority_url: Annotated[
        str, Key(TEXT, "The authority hub of a tenant; while it cannot be reached, the hub is not ready.")
    ] = ""
    force_plain_http: Annotated[
        bool, Key(BOOLEAN, "Allow plain HTTP beyond loopback, as inside a cluster (D-67).", restart=True)
    ] = False
    dev: Annotated[
        bool,
        Key(
            BOOLEAN,
            "Loopback only, and requests of web pages are refused; `veen hub start --dev` sets it.",
            restart=True,
        ),
    ] = False
    replicas: Annotated[
        tuple[str, ...],
        Key(
            list_of(ADDRESS),
            "Addresses of replicas of this hub; once one was promoted, this hub does not start or admit any more.",
        ),
    ] = ()
    replicas_ca_file: Annotated[
        Path | None, Key(PATH, "Certificates to trust for `replicas` instead of the system's (PEM).")
    ] = None
    replicas_required: Annotated[
        bool, Key(BOOLEAN, "Not ready while one of `replicas` cannot be asked whether it was promoted.")
    ] = False
    listen: Listen = Listen()
    tls: TlsConfig = TlsConfig()
    auth: Auth = Auth()
    admission: Admission = Admission()
    limits: Limits = DEFAULT_LIMITS
    engine: Engine = Engine()
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    retention: Retention = Retention()
    attachments: AttachmentPolicy = AttachmentPolicy()
    anchor: Anchor = Anchor()
    outer: Outer = Outer()
    scrub: Scrub = Scrub()
    spool: SpoolConfig = SpoolConfig()
    nats: NatsConfig = NatsConfig()
    quic: QuicConfig = QuicConfig()
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def value_of(self, key: str) -> Any:
        section, _, name = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, name)

    def take_over(self, new: "HubConfig") -> "Reload":
        """Return the outcome of reloading `new`. Keys that require a restart keep their present values."""
        changed = [setting.key for setting in SETTINGS if new.value_of(setting.key) != self.value_of(setting.key)]
        # Switching TLS on or off requires a restart, so the files of a changed switch wait for it too.
        tls_waits = (self.tls.cert is None) != (new.tls.cert is None)
        late = [key for key in changed if _BY_KEY[key].restart or (tls_waits and key.startswith("tls."))]
        old_values: dict[str, dict[str, Any]] = {}
        for key in late:
            section, _, name = key.rpartition(".")
            old_values.setdefault(section, {})[name] = self.value_of(key)
        arguments = dict(old_values.pop("", {}))
        for section, values in old_values.items():
            arguments[section] = replace(getattr(new, section), **values)
        origins = {**new.origins, **{key: self.origins[key] for key in late if key in self.origins}}
        removed = tuple(stream for stream in self.admission.streams if stream not in new.admission.streams)
        if removed:  # labels that the hub derived from them stay writable until it starts again
            late.append("admission.streams")
            arguments["admission"] = replace(
                arguments.get("admission", new.admission), streams=(*new.admission.streams, *removed)
            )
        applied = tuple(key for key in changed if key not in late)
        return Reload(config=replace(new, **arguments, origins=origins), applied=applied, late=tuple(late))

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield every key with its value, as a configuration file would hold it, and its source."""
        for setting in SETTINGS:
            yield setting.key, _show(self.value_of(setting.key)), self.origins.get(setting.key, "default")

    def worker_count(self) -> int:
        """Return the number of verifier processes or native threads. Threads need no interpreter, so each core gets
        one."""
        if self.engine.workers is not None:
            return self.engine.workers
        cores = os.cpu_count() or 2
        return max(1, cores - 1) if native.LOADED.module is None else cores

    def policy(self, hub_id: bytes = b"") -> Policy:
        """Return the policy of admission, with the token files read. `hub_id` is empty until the hub has an
        identity."""
        admission = self.admission
        trusted: dict[bytes, frozenset[bytes] | None] = {}
        for issuer in admission.trusted_issuers:
            if issuer.issuer_pk is not None:
                trusted[issuer.issuer_pk] = None if issuer.streams is None else frozenset(issuer.streams)
        auth1 = Auth1(
            hub_id=hub_id, realm_id=admission.realm, accept_unspecified=admission.unspecified_authority == "accept"
        )
        kex1 = Kex1(
            max_client_id_lifetime_sec=admission.max_client_id_lifetime_sec,
            max_msgs_per_client_id_per_label=admission.max_msgs_per_client_id_per_label,
        )
        tokens = [self._token(path) for path in admission.token_files]
        try:
            return Policy(
                profiles=admission.profiles,
                capability_gating=admission.capability_gating,
                stream_scope=admission.stream_scope,
                trusted_issuers=trusted,
                trust_any_issuer=any(issuer.issuer_pk is None for issuer in admission.trusted_issuers),
                principal_grants=admission.principal_grants,
                preloaded={token.auth_ref(): token for token in tokens},
                streams=frozenset(admission.streams),
                denied_clients=frozenset(admission.denied_clients),
                pow_difficulty=admission.pow_difficulty,
                auth1=auth1 if admission.auth1 else None,
                kex1=kex1 if admission.kex1_plus else None,
            )
        except MalformedError as exc:
            key = f"admission.{exc.where}"
            raise ConfigError(self.origins.get(key, "default"), key, exc.what, "Change one of the two.") from exc

    def _token(self, path: Path) -> CapToken:
        try:
            token = CapToken.from_bytes(_read(path, "admission.token_files"))
            token.verify()
        except (FormatError, VeenError) as exc:
            if isinstance(exc, ConfigError):
                raise
            raise ConfigError(
                str(path), "admission.token_files", f"invalid capability token: {exc}", "Issue it again, or remove it."
            ) from exc
        return token

    def tokens(self, key: Literal["admin_token_files", "read_token_files", "metrics_token_files"]) -> tuple[bytes, ...]:
        """Return the bearer tokens in the files that `auth.<key>` names."""
        return tuple(read_token_file(path, f"auth.{key}") for path in getattr(self.auth, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """The outcome of `HubConfig.take_over`."""

    config: HubConfig  # in force afterwards
    applied: tuple[str, ...]  # keys whose new value is in force
    late: tuple[str, ...]  # keys whose new value waits for a restart, at least in part


class Setting(NamedTuple):
    """One key of the schema."""

    key: str
    kind: Kind
    default: Any
    about: str
    restart: bool

    @property
    def variable(self) -> str:
        # VEEN_IDENTITY names a person on the command line, so the hub's key of that name has another variable.
        return "VEEN_HUB_IDENTITY" if self.key == "identity" else "VEEN_" + self.key.upper().replace(".", "_")


_LIMIT_ABOUT: Final = "Limit of spec §14; may be lowered, never raised."


def _settings(schema: type[Any], prefix: str = "") -> Iterator[Setting]:
    defaults = {entry.name: entry.default for entry in fields(schema)}
    for name, hint in get_type_hints(schema, include_extras=True).items():
        if hint is Limits:
            for limit in fields(Limits):
                kind = choice(*COMPRESSIONS) if limit.name == "compression" else integer(0, 2**63 - 1)
                about = "Compression of sealed chunks." if limit.name == "compression" else _LIMIT_ABOUT
                yield Setting(f"{name}.{limit.name}", kind, limit.default, about, restart=True)  # spec §14.1
        elif isinstance(hint, type) and is_dataclass(hint):
            yield from _settings(hint, f"{name}.")
        elif name != "origins":
            key: Key = hint.__metadata__[0]
            default = None if defaults[name] is MISSING else defaults[name]
            yield Setting(f"{prefix}{name}", key.kind, default, key.about, key.restart)


SETTINGS: Final = tuple(_settings(HubConfig))
_BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
_SECTIONS: Final = {key.partition(".")[0] for key in _BY_KEY if "." in key}
_ALIASES: Final = {"hub_profile": "role"}  # as spec-4 writes it


@dataclass(slots=True)
class _Layers:
    """Values found so far; later layers replace earlier ones."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def store(self, key: str, value: Any, source: str, base: Path, *, text: bool) -> None:
        setting = _BY_KEY[key]
        try:
            self.values[key] = setting.kind.read(value, text, base)
        except ValueError as exc:
            raise ConfigError(source, key, str(exc), f"Give {key} {setting.kind.expects}.") from exc
        self.origins[key] = source


def load(
    file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> HubConfig:
    """Read and check a configuration. Raise ConfigError if it is invalid. The names of `flags` are keys."""
    layers = _Layers()
    if file is not None:
        for key, value in _walk_keys(_parse(file), str(file)):
            layers.store(key, value, str(file), file.resolve().parent, text=False)
    here = Path.cwd()
    for setting in SETTINGS:
        if environ and setting.variable in environ:
            layers.store(setting.key, environ[setting.variable], f"variable {setting.variable}", here, text=True)
    for key, value in (flags or {}).items():
        layers.store(key, value, f"flag --{key.rpartition('.')[2].replace('_', '-')}", here, text=True)
    return _check(_build(layers))


def _parse(file: Path) -> dict[str, Any]:
    data = _read(file, "")
    if file.suffix in (".yaml", ".yml"):
        import yaml

        try:
            tree = yaml.safe_load(data)
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            raise ConfigError(str(file), "", f"not valid YAML: {exc}", "Correct the file.") from exc
    else:
        try:
            tree = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfigError(
                str(file), "", f"not valid TOML: {exc}", "Correct the file; YAML files end in .yaml."
            ) from exc
    if tree is None:
        return {}
    if type(tree) is not dict:
        raise ConfigError(str(file), "", "expected keys and values", "See docs/configuration.md for an example.")
    return tree


def _walk_keys(tree: Mapping[Any, Any], source: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        key = _ALIASES.get(key, key)
        if key in _BY_KEY:
            yield key, value
        elif key in _SECTIONS and type(value) is dict:
            yield from _walk_keys(value, source, f"{key}.")
        elif key in _SECTIONS and value is None:  # an empty section in YAML
            continue
        elif key in _SECTIONS:
            raise ConfigError(source, key, f"a section, found {value!r}", f"Write its keys below it, as {key}.…")
        else:
            raise ConfigError(source, key, "no such key", _nearest(key))


def _nearest(key: str) -> str:
    names = [*_BY_KEY, *_SECTIONS]
    # A key in the wrong section is as near as one misspelt in the right one.
    name = key.rpartition(".")[2]
    same_name = [candidate for candidate in names if candidate.rpartition(".")[2] == name]
    close = same_name or difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else "Remove it; docs/configuration.md lists every key."


def _build(layers: _Layers) -> HubConfig:
    arguments: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for key, value in layers.values.items():
        section, _, name = key.rpartition(".")
        if section:
            sections.setdefault(section, {})[name] = value
        else:
            arguments[name] = value
    for section, values in sections.items():
        schema = get_type_hints(HubConfig)[section]
        try:
            arguments[section] = schema(**values)
        except (LimitError, MalformedError) as exc:
            name = exc.name if isinstance(exc, LimitError) else exc.where
            key = f"{section}.{name}"
            raise ConfigError(
                layers.origins.get(key, "default"),
                key,
                str(exc).removeprefix(f"{name}: "),
                "Lower it; spec §14 is the ceiling.",
            ) from exc
    if arguments.get("data_dir") is None:
        raise ConfigError(
            "",
            "data_dir",
            "is required",
            "Give --data-dir DIR, VEEN_DATA_DIR or data_dir in the file; for a hub to try: veen hub start --dev.",
        )
    return HubConfig(**arguments, origins=dict(layers.origins))


def _check(config: HubConfig) -> HubConfig:
    """Check the rules that concern several keys."""
    origin = config.origins.get
    tls = config.tls
    if (tls.cert is None) != (tls.key is None):
        have, lack = ("tls.cert", "tls.key") if tls.cert else ("tls.key", "tls.cert")
        raise ConfigError(origin(have, ""), lack, f"is missing, but {have} is set", "Give both or none.")
    if tls.client_ca is not None and tls.cert is None:
        raise ConfigError(origin("tls.client_ca", ""), "tls.client_ca", "needs tls.cert and tls.key", "Give all three.")
    if config.dev and not is_loopback(config.listen.host):
        raise ConfigError(
            origin("listen.host", ""),
            "listen.host",
            f"{config.listen.host} is not loopback, and --dev admits messages from anybody who can connect",
            "Leave --dev out to listen there, or leave out listen.host to try things on this machine.",
        )
    if tls.cert is None and not config.force_plain_http and not is_loopback(config.listen.host):
        raise ConfigError(
            origin("listen.host", ""),
            "listen.host",
            f"{config.listen.host} is not loopback and TLS is off",
            "Give tls.cert and tls.key, or force_plain_http = true where something else encrypts (D-67).",
        )
    if config.quic.enabled:
        _check_quic(config)
    if config.nats.url:
        _check_nats(config.nats.url, origin("nats.url", ""))
    if config.retention.receipts and not 0 < config.retention.payloads <= config.retention.receipts:
        raise ConfigError(
            origin("retention.receipts", ""),
            "retention.receipts",
            "receipts must be kept at least as long as payloads",
            "Give retention.payloads a shorter time, or keep receipts forever with 0.",
        )
    config.policy()
    return config


def _check_quic(config: HubConfig) -> None:
    source = config.origins.get("quic.enabled", "")
    if config.tls.cert is None:
        remedy = "Give tls.cert and tls.key: QUIC is always encrypted."
        raise ConfigError(source, "quic.enabled", "needs tls.cert and tls.key", remedy)
    if config.tls.client_ca is not None:  # the library cannot request client certificates
        remedy = "Leave one of the two out; readers and administrators may have tokens instead."
        raise ConfigError(source, "quic.enabled", "QUIC cannot require client certificates (tls.client_ca)", remedy)


def _check_nats(url: str, source: str) -> None:
    try:
        NatsAddress.of(url)
    except ValueError as exc:
        raise ConfigError(source, "nats.url", str(exc), "Give nats.url as nats://HOST:PORT.") from exc


def read_token_file(path: Path, key: str) -> bytes:
    """Read one bearer token: the text of a file without surrounding white space."""
    token = _read(path, key).strip()
    if (mode := mode_of(path)) is not None:
        what = f"other users may access this token (mode {mode:04o}), so it is not used"
        raise ConfigError(str(path), key, what, "Run `chmod 600` on the file; replace the token if it was exposed.")
    if len(token) < _MIN_TOKEN_CHARS or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            str(path),
            key,
            f"expected one token of at least {_MIN_TOKEN_CHARS} ASCII characters",
            "Write one with: openssl rand -hex 32",
        )
    return token


def _read(path: Path, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            str(path), key, f"cannot be read: {exc.strerror}", "Check the path and its permissions."
        ) from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(str(path), key, "is larger than 1 MiB", "Check that this is the right file.")
    return data


def _show(value: Any) -> Any:
    """Return a value as a configuration file would hold it."""
    if isinstance(value, tuple):
        return [_show(element) for element in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (Path, Network)):
        return str(value)
    if isinstance(value, Profile):
        names = [name for name, preset in PRESETS.items() if preset == value]
        return names[0] if names else {"epoch_sec": value.epoch_sec, "pad_block": value.pad_block}
    if isinstance(value, Issuer):
        key = "*" if value.issuer_pk is None else value.issuer_pk.hex()
        return key if value.streams is None else {"issuer": key, "streams": _show(value.streams)}
    return value
