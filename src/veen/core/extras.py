"""How an optional part is installed: from a checkout or a wheel, never by the bare name from a registry.

No release of ours is on a registry, where anybody could own the name.
"""


def install_hint(extra: str) -> str:
    """The sentence that every text about a missing extra ends with."""
    return f"Install the extra: pip install '.[{extra}]' in a checkout, or 'FILE.whl[{extra}]' of the wheel."
