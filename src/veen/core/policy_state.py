"""The policy view at a moment: revocations, and the primary of each stream (001 spec-2 §2.4, §4.3).

A fold over policy records in the order of the control journal. A record takes effect in the second after its own. A
decision of a hub at a hub_ts is therefore a function of the control journal and that hub_ts alone, and a replay of the
log need not know which entries of one second came before a record of that second (D-60).

Ended items are removed, as time never goes back (D-28): memory is bounded by what is or will be in force.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import (
    BOUND_KINDS,
    MULTI_PRIMARY,
    REVOCATION_KINDS,
    Authority,
    PolicyBody,
    PolicyBounds,
    PolicyRevocation,
    Revocation,
    SizeBound,
)

_Span = tuple[int, int]  # [from, until)
_Given = tuple[int, Authority]  # from when on it counts here
_Bound = tuple[int, int]  # from when on, and the largest MSG in bytes; 0: none
_SWEEP_AT_LEAST: Final = 1_024


class PolicyView:
    """Revocations, authorities and bounds. A lookup is one dict access and a scan of the few spans of a target."""

    __slots__ = ("_authorities", "_bounds", "_revoked", "_size", "_sweep_at")

    def __init__(self) -> None:
        self._revoked: dict[str, dict[bytes, tuple[_Span, ...]]] = {kind: {} for kind in REVOCATION_KINDS}
        self._authorities: dict[tuple[bytes, bytes], tuple[_Given, ...]] = {}  # by realm and stream
        self._bounds: dict[str, dict[bytes, tuple[_Bound, ...]]] = {kind: {} for kind in BOUND_KINDS}
        self._size, self._sweep_at = 0, _SWEEP_AT_LEAST

    # --- the fold ----------------------------------------------------------------------------------------

    def add(self, body: PolicyBody, hub_ts: int) -> None:
        """Apply a record that was journaled at `hub_ts`."""
        if isinstance(body, PolicyRevocation):
            for revocation in body.revocations:
                self._revoke(revocation, hub_ts)
        elif isinstance(body, PolicyBounds):
            for bound in body.bounds:
                self._bound(bound, hub_ts)
        else:
            for authority in body.authorities:
                self._authorise(authority, hub_ts)
        if self._size > self._sweep_at:
            self._sweep(hub_ts)

    def _revoke(self, revocation: Revocation, hub_ts: int) -> None:
        if not self.is_news(revocation, hub_ts):
            return
        targets = self._revoked[revocation.kind]
        revoked = targets.get(revocation.target, ())
        spans = _union((span for span in revoked if span[1] > hub_ts), (_begins(revocation, hub_ts), revocation.until))
        targets[revocation.target] = spans
        self._size += len(spans) - len(revoked)

    def _authorise(self, authority: Authority, hub_ts: int) -> None:
        if not self.is_news(authority, hub_ts):
            return
        place = (authority.realm_id, authority.stream_id)
        records = self._authorities.get(place, ())
        live = [*(record for record in records if record[1].until > hub_ts), (_begins(authority, hub_ts), authority)]
        # Earliest (ts, primary_hub) first; the sort is stable, so the journal decides between equals (D-101).
        live.sort(key=lambda record: (record[1].ts, record[1].primary_hub))
        self._authorities[place] = tuple(live)
        self._size += len(live) - len(records)

    def _bound(self, bound: SizeBound, hub_ts: int) -> None:
        """Keep at most two for each target: the one in force, and the one that begins with the next second."""
        targets = self._bounds[bound.kind]
        in_force = [row for row in targets.get(bound.target, ()) if row[0] <= hub_ts][-1:]
        targets[bound.target] = (*in_force, (hub_ts + 1, bound.max_msg_bytes))

    def _sweep(self, hub_ts: int) -> None:
        """Remove ended items. This runs each time the view has doubled, so its cost is amortised over the additions."""
        for kind, targets in self._revoked.items():
            spans = {target: tuple(span for span in listed if span[1] > hub_ts) for target, listed in targets.items()}
            self._revoked[kind] = {target: left for target, left in spans.items() if left}
        records = {
            place: tuple(record for record in listed if record[1].until > hub_ts)
            for place, listed in self._authorities.items()
        }
        self._authorities = {place: left for place, left in records.items() if left}
        self._size = sum(len(spans) for targets in self._revoked.values() for spans in targets.values())
        self._size += sum(map(len, self._authorities.values()))
        self._sweep_at = max(_SWEEP_AT_LEAST, 2 * self._size)

    def is_news(self, item: Revocation | Authority | SizeBound, hub_ts: int) -> bool:
        """Return True if a record about `item`, journaled at `hub_ts`, would change anything."""
        if isinstance(item, SizeBound):
            return (self._bounds[item.kind].get(item.target) or ((0, 0),))[-1][1] != item.max_msg_bytes
        begins = _begins(item, hub_ts)
        if item.until <= begins:  # over before it counts, or of no length
            return False
        if isinstance(item, Authority):
            return all(item != authority for _, authority in self._authorities.get((item.realm_id, item.stream_id), ()))
        spans = self._revoked[item.kind].get(item.target, ())
        return not any(start <= begins and item.until <= until for start, until in spans)

    # --- lookups -----------------------------------------------------------------------------------------

    @property
    def revokes_tokens(self) -> bool:
        """True if any cap-token is listed. If none is, callers need not hash one."""
        return bool(self._revoked["cap-token"])

    def revocation_end(self, kind: str, target: bytes, hub_ts: int) -> int | None:
        """Return the end of the revocation of `target` that is in force at `hub_ts`; None if it is not revoked."""
        for start, until in self._revoked[kind].get(target, ()):
            if start <= hub_ts < until:
                return until
        return None

    def token_revocation_end(self, token: CapToken, data: bytes, hub_ts: int) -> int | None:
        """Return the end of a revocation by the bytes of a token or by a link of its chain (D-173); None if there is
        none.

        No signature is verified for this: a forged link can revoke only a forged token.
        """
        if not self.revokes_tokens:
            return None
        ends = (self.revocation_end("cap-token", target, hub_ts) for target in token.revocable_as(data))
        return max((until for until in ends if until is not None), default=None)

    def authority(self, realm_id: bytes, stream_id: bytes, hub_ts: int) -> Authority | None:
        """Return the active record of a stream; None where its authority is unspecified (§2.4)."""
        for begins, record in self._authorities.get((realm_id, stream_id), ()):
            if begins <= hub_ts < record.until:
                return record
        return None

    def max_msg_bytes(self, label: bytes, stream_id: bytes, hub_ts: int) -> int:
        """Return the largest MSG of a label: the smaller of its own bound and that of its stream; 0 if none has one."""
        largest = 0
        for kind, target in zip(BOUND_KINDS, (label, stream_id), strict=True):
            for begins, bound in reversed(self._bounds[kind].get(target, ())):
                if begins <= hub_ts:
                    largest = min(largest, bound) if largest and bound else largest or bound
                    break
        return largest

    def counts(self, hub_ts: int) -> tuple[int, int]:
        """Return the numbers of targets that are revoked now and of streams with several primaries (AUTH1 §3.3)."""
        revoked = sum(
            any(start <= hub_ts < until for start, until in spans)
            for targets in self._revoked.values()
            for spans in targets.values()
        )
        active = (self.authority(*place, hub_ts) for place in self._authorities)
        return revoked, sum(record is not None and record.policy == MULTI_PRIMARY for record in active)

    def in_force(self, hub_ts: int) -> Iterator[tuple[object, ...]]:
        """Yield everything in force after `hub_ts`, in a fixed order. Two views with equal results decide equally."""
        for kind in REVOCATION_KINDS:
            for target in sorted(self._revoked[kind]):
                spans = ((max(start, hub_ts + 1), until) for start, until in self._revoked[kind][target])
                yield from ((kind, target, *span) for span in spans if span[0] < span[1])
        for place in sorted(self._authorities):
            periods = ((max(begins, hub_ts + 1), record) for begins, record in self._authorities[place])
            yield from ((*place, *period) for period in periods if period[0] < period[1].until)
        for kind in BOUND_KINDS:
            for target in sorted(self._bounds[kind]):
                begins, bound = self._bounds[kind][target][-1]
                if bound:
                    yield (kind, target, max(begins, hub_ts + 1), bound)


def _begins(item: Revocation | Authority, hub_ts: int) -> int:
    """Return the second from which an item of a record of `hub_ts` is in force."""
    return max(item.ts, hub_ts + 1)


def _union(spans: Iterable[_Span], added: _Span) -> tuple[_Span, ...]:
    """Return disjoint spans, in order; adjacent spans become one."""
    start, until = added
    apart: list[_Span] = []
    for span in spans:
        if span[1] < start or span[0] > until:
            apart.append(span)
        else:
            start, until = min(start, span[0]), max(until, span[1])
    return tuple(sorted([*apart, (start, until)]))
