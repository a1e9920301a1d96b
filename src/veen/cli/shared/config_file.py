"""Reading the user's configuration: `veen.client.config.file`, under the name that commands know it by."""

from veen.client.config.file import ConfigFile, bad_file, check_key, check_value, context_name, read

__all__ = ["ConfigFile", "bad_file", "check_key", "check_value", "context_name", "read"]
