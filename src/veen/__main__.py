"""`python -m veen`."""

from veen.cli import main

if __name__ == "__main__":  # worker processes import their parent's main module
    main()
