"""Options that several commands have: one meaning, one name, one help text (decision 550).

A text says what the value is, its unit or form, and its default. Imports nothing but click, since help must stay fast.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# The hub and the caller. Where the option of a command replaces a variable, the text ends with its name.
CONTEXT: Final = "Context to use. [VEEN_CONTEXT]"
HUB: Final = "URL of the hub."
CA_FILE: Final = "Certificates to trust instead of the system's (PEM)."
TOKEN_FILE: Final = "File with the bearer token for the hub."  # noqa: S105 - a help text
INSECURE_HTTP: Final = "Allow to send the bearer token to another machine over plain http://."
IDENTITY: Final = "Identity to use: a name, or a directory."
PASSPHRASE_FILE: Final = "File with the passphrase of the keystore."  # noqa: S105 - a help text
NEW_PASSPHRASE_FILE: Final = "File whose first line is the new passphrase."  # noqa: S105 - a help text
PIN: Final = "Pinned key of the hub: ed25519:HEX, or root:ed25519:HEX for an ephemeral hub."
OFFLINE: Final = "Ask no hub."
USE: Final = "Use this hub from now on. Default: if no hub is in use yet."

# Data directories.
HUB_DIR: Final = "Data directory of a hub on this machine."
LOG_DIR: Final = "Data directory: a path, or a URL that Arrow can read."
HUB_IDENTITY: Final = "File hub-identity.json from elsewhere, to verify receipts by."
STORE: Final = "Directory of query results and digests. Default: in your home."

# Selections of entries.
FIRST: Final = "First entry. Default: the beginning."
LAST: Final = "Last entry. Default: the end."
RANGE: Final = "First and last entry: 10..20. Either may be left open."
SINCE: Final = "First time of the hub: ISO 8601, seconds, or -15m. Inclusive."
UNTIL: Final = "Last time of the hub: ISO 8601, seconds, or -15m. Inclusive."
AUTHOR: Final = "Only entries of this author: a contact, `me`, or a client_id in hex."
GREP: Final = "Only entries whose text matches this regular expression."
AS_OF: Final = "Position (120) or time (-15m, ISO 8601, @UNIX) of the state."

EARLIER: Final = "Continue from an earlier run, by the directory of its --out."

# Evidence.
HUB_PK: Final = "Trusted key of the hub, in hex. Repeat after a rotation. Default: the pinned key."
NO_PIN: Final = "Ignore the pin, and verify by the keys that the input itself names."
ROOT: Final = "Trusted root, in hex. Requires --size."
SEQ: Final = "Position of the entry. Default: the last one of the tree."
TREE_SIZE: Final = "Tree size, in entries. Default: SEQ."
WITNESS: Final = "Key of a witness that must have signed the CHECKPOINT. Repeatable."
WITNESS_POLICY: Final = "File with a policy of witnesses, k of n, that must be satisfied."
WITH: Final = "RECEIPT, CHECKPOINT or MSG that the check needs. Repeatable."

# Output and effects.
CBOR_OUT: Final = "Also write it to this file, as CBOR."
RECEIPT_OUT: Final = "Also write the RECEIPT to this file, as CBOR."
REPLACE: Final = "Replace what exists under this name."
DRY_RUN: Final = "Show what would be done. Change and send nothing."
YES: Final = "Do not ask for confirmation."
REASON: Final = "Reason, stored in the log. Its readers see it."
TOKEN_TTL: Final = "Lifetime of the capability token, from its first use at a hub: 600, 10m, 7d."  # noqa: S105 - a text
RECEIPT_AGE: Final = "Age after which receipts are erased, too; 0 for never."

# Work.
OVERLAY: Final = "Name of an overlay. `veen fold list` shows them."
JOBS: Final = "Number of parallel processes."
DESCRIPTOR: Final = "File with a QueryDescriptor in JSON."
TABLE_VERSION: Final = "Version of the tables. Default: the newest."
LIMIT: Final = "Maximal number of rows."
OFFSET: Final = "Number of rows to skip."
TIMEOUT: Final = "Seconds to wait."

# Servers.
HOST: Final = "Address to listen on."
PORT: Final = "Port to listen on; 0 picks a free one."
LOG_LEVEL: Final = "Lowest level of log lines: debug, info, warning or error."


def keep_former(*names: str, former: str, help: str, **attributes: Any) -> Callable[[F], F]:
    """Declare an option that keeps its former name as a hidden option: scripts may use it.

    `names` end with the name of the parameter. The two are declared apart, and merged before the command runs.
    """
    *_, name = names
    hidden = f"former_{name}"
    own = {key: value for key, value in attributes.items() if key in ("type", "is_flag", "metavar")}

    def decorate(command: F) -> F:
        @click.option(*names, help=help, **attributes)
        @click.option(former, hidden, hidden=True, **own)
        @wraps(command)
        def run(*args: Any, **kwargs: Any) -> Any:
            value = kwargs.pop(hidden)
            if value not in (None, False):
                if kwargs[name] not in (None, False):
                    raise click.UsageError(f"{former} is the former name of {names[0]}: give one of them")
                kwargs[name] = value
            return command(*args, **kwargs)

        return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters

    return decorate
