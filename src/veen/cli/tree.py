"""Draw an inclusion proof as text: which hashes it needs, and what they cover."""

from veen.core.mmr import peak_nodes

__all__ = ["proof_tree"]


def proof_tree(stream_seq: int, tree_size: int) -> list[str]:
    """The part of a tree of `tree_size` entries that a proof for `stream_seq` touches, line by line."""
    lines = [f"root of {tree_size}"]
    peaks = sorted(peak_nodes(tree_size), key=lambda node: node[1] << node[0])  # as the entries lie, left to right
    for number, (height, index) in enumerate(peaks):
        last = number == len(peaks) - 1
        _draw(lines, "", last, height, index, stream_seq - 1, is_peak=True)
    return lines


def _draw(lines: list[str], indent: str, last: bool, height: int, index: int, pos: int, *, is_peak: bool) -> None:
    covers = pos >> height == index
    role = "peak" if is_peak else "node"
    if not covers:
        role = "peak, in the proof" if is_peak else "sibling, in the proof"
    elif height == 0:
        role = "your message" + (", itself a peak" if is_peak else "")
    lines.append(f"{indent}{'└─' if last else '├─'} {_range(height, index)}  {role}")
    if covers and height:
        below = indent + ("   " if last else "│  ")
        _draw(lines, below, False, height - 1, index * 2, pos, is_peak=False)
        _draw(lines, below, True, height - 1, index * 2 + 1, pos, is_peak=False)


def _range(height: int, index: int) -> str:
    first, last = (index << height) + 1, (index + 1) << height
    return str(first) if first == last else f"{first}-{last}"
