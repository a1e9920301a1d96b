"""Guesses: names of other programs for commands, commands of a group and options, and our name for each."""

from collections.abc import Mapping
from typing import Final

import click

# A name that is no command: the command that does it, and what that is.
GUESSES: Final[Mapping[str, tuple[str, str]]] = {
    "read": ("veen stream STREAM", "read a stream"),
    "cat": ("veen stream STREAM", "read a stream"),
    "follow": ("veen tail STREAM", "show what is written from now on"),
    "watch": ("veen tail STREAM", "show what is written from now on"),
    "write": ("veen send STREAM BODY", "send a message"),
    "publish": ("veen send STREAM BODY", "send a message"),
    "status": ("veen hub status", "the state of the hub in use; of this machine: veen doctor"),
    "health": ("veen hub health", "whether the hub is ready"),
    "export": ("veen evidence export STREAM --out FILE", "entries for outsiders; your own keys: veen id export DIR"),
    "backup": ("veen hub clone DIR COPY", "a copy of a hub's directory; of your own keys: veen id export DIR"),
    "restore": ("veen hub clone COPY DIR", "from a copy of a hub's directory; of your own keys: veen id import DIR"),
    "login": (
        "veen keygen --name NAME",
        "there are no accounts: an identity is a key of your own; then veen context add",
    ),
    "init": ("veen keygen --name NAME", "make an identity; then veen context add"),
    "keyring": ("veen id keyring list", "the keys of streams"),
    "import": ("veen id import DIR", "an identity that was exported"),
    "share": ("veen invite STREAM --for NAME", "one file with all that somebody else needs; without her card: --code"),
    "accept": ("veen join FILE", "use an invitation"),
    "outbox": ("veen pending list", "messages that got no receipt"),
    "friends": ("veen contacts list", "people whose cards you keep"),
    "unlock": ("veen agent start", "type a passphrase once"),
    "prove": ("veen proof show STREAM SEQ --tree", "that an entry stands in the log"),
    "record": ("veen recorder emit STREAM --type TYPE PAYLOAD", "record an event; a message: veen send"),
    "server": ("veen hub start --dev", "run a hub to try; one to keep: veen hub start --data-dir DIR"),
    "start": ("veen hub start --dev", "run a hub to try; one to keep: veen hub start --data-dir DIR"),
    "stop": ("veen hub stop --data-dir DIR", "stop a hub"),
    "search": ("veen query run --data-dir DIR", "ask recorded events"),
    "whoami": ("veen id show", "your identity"),
    "settings": ("veen config show", "settings, and where each comes from"),
    "ping": ("veen hub health", "whether the hub is ready"),
    "serve": ("veen hub start --dev", "run a hub to try; one to keep: veen hub start --data-dir DIR"),
    "run": ("veen hub start --dev", "run a hub to try; one to keep: veen hub start --data-dir DIR"),
    "up": ("veen hub start --dev", "run a hub to try; one to keep: veen hub start --data-dir DIR"),
    "list": ("veen keys list", "the streams that you have keys of"),
    "ls": ("veen keys list", "the streams that you have keys of"),
    "streams": ("veen keys list", "the streams that you have keys of"),
    "topics": ("veen keys list", "the streams that you have keys of"),
    "log": ("veen stream STREAM", "read a stream; the log of a hub's process: veen hub log DIR"),
    "logs": ("veen hub log DIR", "the log of a hub's process; the entries of a stream: veen stream STREAM"),
    "history": ("veen stream STREAM", "read a stream"),
    "get": ("veen stream STREAM --range 1..1", "read one entry; its proof: veen proof show STREAM SEQ"),
    "show": ("veen stream STREAM", "read a stream; a file: veen inspect FILE"),
    "peek": ("veen stream STREAM --last 1", "the newest entry"),
    "last": ("veen stream STREAM --last 1", "the newest entry"),
    "head": (
        "veen checkpoint show STREAM",
        "how many entries a stream has, signed; the first ones: veen stream STREAM --to 10",
    ),
    "count": ("veen checkpoint show STREAM", "how many entries a stream has, signed"),
    "root": ("veen checkpoint show STREAM", "the signed root of a stream"),
    "grep": ("veen stream STREAM --grep TEXT", "the entries whose body matches"),
    "find": ("veen stream STREAM --grep TEXT", "the entries whose body matches"),
    "subscribe": ("veen tail STREAM", "show what is written from now on"),
    "sub": ("veen tail STREAM", "show what is written from now on"),
    "consume": ("veen tail STREAM", "show what is written from now on; work items: veen queue pull"),
    "pub": ("veen send STREAM BODY", "send a message"),
    "produce": ("veen send STREAM BODY", "send a message"),
    "append": ("veen send STREAM BODY", "send a message"),
    "add": ("veen send STREAM BODY", "send a message"),
    "put": ("veen send STREAM BODY", "send a message; a value under a key: veen kv put"),
    "post": ("veen send STREAM BODY", "send a message"),
    "delete": ("veen hub retention --help", "nothing in a log is changed; whole ends of it can be erased by its hub"),
    "rm": ("veen hub retention --help", "nothing in a log is changed; whole ends of it can be erased by its hub"),
    "edit": ("veen send STREAM BODY", "nothing in a log is changed: send what is right now"),
    "users": ("veen contacts list", "people whose cards you keep"),
    "people": ("veen contacts list", "people whose cards you keep"),
    "members": ("veen keys list STREAM", "who can read a stream"),
    "readers": ("veen keys list STREAM", "who can read a stream"),
    "grant": ("veen invite STREAM --for NAME", "let somebody use a stream; only write: --write"),
    "token": ("veen cap issue --help", "capability tokens: who may write where, until when"),
    "tokens": ("veen cap show --help", "capability tokens: who may write where, until when"),
    "card": ("veen id card", "your public card, which others add to their contacts"),
    "identity": ("veen id show", "your identity"),
    "passphrase": ("veen id passphrase", "change the passphrase of your keystore; type it once: veen agent start"),
    "lock": ("veen agent lock", "close all keystores"),
    "remember": ("veen keystore remember", "have the desktop keyring open your keystore"),
    "logout": ("veen agent lock", "there are no accounts: close all keystores"),
    "rotate": (
        "veen keys rotate STREAM",
        "new keys of a stream; of a hub: veen hub key rotate; of your own: veen id rotate",
    ),
    "pin": ("veen context pin NAME KEY", "pin the key of a context's hub; which key: veen hub key show --only-pin"),
    "hubs": ("veen context list", "the hubs that you gave names"),
    "use": ("veen context use NAME", "choose a hub"),
    "metrics": ("veen hub metrics", "what a hub counts"),
    "stats": ("veen hub status", "the state of the hub in use"),
    "info": ("veen hub status", "the state of the hub in use; of this machine: veen doctor"),
    "reload": ("veen hub reload DIR", "have a hub read its configuration again"),
    "check": ("veen verify FILE", "check any artefact; this machine: veen doctor"),
    "validate": ("veen verify FILE", "check any artefact"),
    "fsck": ("veen hub verify-data DIR", "check the data directory of a hub"),
    "sql": ("veen query sql --help", "SQL over tables of recorded events"),
    "ui": ("veen console open", "look at logs in a browser"),
    "web": ("veen console open", "look at logs in a browser"),
    "dashboard": ("veen console open", "look at logs in a browser; for Grafana: veen docs howto/monitor"),
    "man": ("veen docs", "the documentation"),
    "examples": ("veen help tour", "the most useful commands in order; every command has examples in its --help"),
    "tutorial": ("veen docs first-receipt", "the first tutorial"),
    "errors": ("veen explain", "all error codes; one of them: veen explain CODE"),
}

_LIST: Final = ("ls", "all", "show-all")
_SHOW: Final = ("get", "cat", "view", "print", "info")
_REMOVE: Final = ("rm", "remove", "delete", "del", "drop", "destroy")

# The same for the commands of a group. Words for list, show and remove are understood in every group that has them.
GROUP_GUESSES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "config": {
        "get": ("veen config show", "all values in force"),
        "list": ("veen config show", "all values in force"),
        "edit": ("veen config path", "where the file is; one value: veen config set KEY VALUE"),
        "unset": ("veen config set KEY --unset", "take a value out"),
    },
    "context": {
        "switch": ("veen context use NAME", "choose a context"),
        "select": ("veen context use NAME", "choose a context"),
        "current": ("veen context show", "the context in use"),
        "new": ("veen context add NAME --hub URL --pin KEY", "name a hub and pin its key"),
        "create": ("veen context add NAME --hub URL --pin KEY", "name a hub and pin its key"),
    },
    "hub": {
        "run": ("veen hub start --data-dir DIR", "run a hub; one to try: veen hub start --dev"),
        "serve": ("veen hub start --data-dir DIR", "run a hub; one to try: veen hub start --dev"),
        "restart": ("veen hub stop DIR", "then veen hub start; settings without a restart: veen hub reload DIR"),
        "backup": ("veen hub clone DIR TARGET", "a copy, also while the hub runs"),
        "restore": ("veen hub clone SOURCE TARGET", "from a copy; then veen hub verify-data TARGET"),
        "pin": ("veen hub key show DIR --only-pin", "what clients pin"),
        "check": ("veen hub verify-data DIR", "check a data directory"),
        "verify": ("veen hub verify-data DIR", "check a data directory"),
        "logs": ("veen hub log DIR", "lines of the log of a hub"),
        "upgrade": ("veen docs howto/upgrade", "stop, install, start; what to check before"),
    },
    "hub key": {"pin": ("veen hub key show DIR --only-pin", "what clients pin")},
    "id": {
        "export-card": ("veen id card", "your public card"),
        "create": ("veen keygen --name NAME", "make an identity"),
        "use": ("veen config set identity NAME", "choose an identity"),
    },
    "contacts": {"import": ("veen contacts add NAME CARD", "keep somebody's card")},
    "keys": {
        "new": ("veen id keyring new STREAM", "the keys of a new stream"),
        "create": ("veen id keyring new STREAM", "the keys of a new stream"),
        "share": ("veen invite STREAM --for NAME", "let somebody use a stream"),
        "revoke": ("veen revoke reader NAME STREAM", "take the right to read"),
        "show": ("veen keys list STREAM", "the readers of a stream"),
    },
    "cap": {"revoke": ("veen revoke writer NAME", "have the hub refuse somebody's tokens")},
    "kv": {
        "set": ("veen kv put STREAM KEY VALUE", "a value under a key"),
        "keys": ("veen kv list STREAM", "all keys and values"),
    },
    "audit": {"show": ("veen audit run DIR", "check a whole log")},
    "receipt": {"show": ("veen receipt get STREAM SEQ", "the receipt of an entry")},
    "evidence": {"verify": ("veen verify FILE --hub-pk KEY", "check an evidence file")},
    "agent": {"unlock": ("veen agent start", "type a passphrase once")},
}

# An option that a command does not have: options that mean it, of which the first is named that the command has.
OPTION_GUESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "--limit": ("--last", "--count"),
    "--tail": ("--last",),
    "--lines": ("--last",),
    "--count": ("--last",),
    "--head": ("--to",),
    "--start": ("--from", "--since"),
    "--end": ("--to", "--until"),
    "--after": ("--since", "--from"),
    "--before": ("--until", "--to"),
    "--user": ("--identity", "--author"),
    "--key": ("--identity", "--pin"),
    "--filter": ("--grep", "--where"),
    "--search": ("--grep",),
    "--url": ("--hub",),
    "--server": ("--hub",),
    "--host": ("--hub",),
    "--cacert": ("--ca-file",),
    "--ca": ("--ca-file",),
    "--token": ("--token-file",),
    "--password": ("--passphrase-file",),
    "--passphrase": ("--passphrase-file",),
    "--message": ("--body",),
    "--data": ("--body", "--data-dir"),
    "--dir": ("--data-dir", "--out"),
    "--format": ("--output",),
    "--verbose": ("--full",),
    "--force": ("--yes", "--replace"),
    "--expiry": ("--ttl", "--expires"),
}


def group_guess(path: str, name: str, table: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the command that `veen PATH NAME` probably means. `table` has the commands of the group."""
    if (answer := GROUP_GUESSES.get(path, {}).get(name)) is not None:
        return answer
    verbs = [("list", _LIST), ("show", _SHOW), *((verb, _REMOVE) for verb in _REMOVE)]
    for verb, words in (*verbs, ("list", ("show", "status")), ("show", ("list", "ls", "status"))):
        if name in words and verb in table:
            return f"veen {path} {verb}", "the same, by its name here"
    return None


def hint_for(error: click.UsageError, command_path: str) -> str:
    """Return a hint for an invalid command line."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = {name for parameter in error.ctx.command.params for name in parameter.opts}
        meant = next((name for name in OPTION_GUESSES.get(error.option_name, ()) if name in options), None)
        if meant is not None:
            return f"use {meant}; {command_path} --help"
    if "'STREAM'" in error.format_message():
        return f"{command_path} --help; the streams that you have keys of: veen keys list"
    if command_path == "veen docs" and not isinstance(error, click.NoSuchOption):
        return "veen docs --help; to look through all pages: veen docs --search WORDS"
    return f"{command_path} --help"
