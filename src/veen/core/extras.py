"""Installation of optional parts: from a checkout or a wheel, never by the bare name from a registry.

No release is on a registry, where anybody could own the name.
"""


def install_hint(extra: str) -> str:
    """Return the sentence that ends every text about a missing extra."""
    return f"Install the extra: pip install '.[{extra}]' in a checkout, or 'FILE.whl[{extra}]' of the wheel."
