"""The commands of `veen replica`."""
