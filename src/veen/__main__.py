"""`python -m veen`."""

from veen.cli import main

main()
