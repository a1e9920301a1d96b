"""The tests of VEEN: a package of its own, as installed distributions may bring one that is named `tests` too."""
