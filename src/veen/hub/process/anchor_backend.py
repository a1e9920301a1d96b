"""The anchor backend that the configuration names (ANC-02)."""

from veen.hub.process.config import Anchor, ConfigError
from veen.io.local import Fs, OsFs
from veen.storage.anchors import AnchorBackend, AnchorError, AnchorFile
from veen.storage.timestamps import TimestampAuthority, TimestampTrust


def anchor_backend(config: Anchor, fs: Fs) -> AnchorBackend:
    """Return the configured backend. Raise ConfigError if it cannot be used; an outage shows only when it is asked."""
    if config.backend == "file":
        if config.directory is None:
            return AnchorFile(fs)
        try:
            config.directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            hint = "Name a directory that the hub may write to."
            raise ConfigError("", "anchor.directory", f"the directory cannot be used: {exc.strerror}", hint) from exc
        return AnchorFile(OsFs(config.directory))
    if config.certificates is None:
        hint = "Give the root and the certificate of the timestamp authority as one PEM file."
        raise ConfigError("", "anchor.certificates", "rfc3161 requires the certificates to trust", hint)
    try:
        return TimestampAuthority(config.url, TimestampTrust.read(config.certificates))
    except AnchorError as exc:
        raise ConfigError("", "anchor.backend", str(exc), "See docs/anchors.md.") from exc
