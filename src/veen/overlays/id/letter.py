"""ID by the letter (D-180): the time that a writer gives orders profiles, handles and links, however far ahead it is.

001 ID §7.1, §8.1, §8.2, §10.1 and §10.2 let the greatest (updated_at or ts, stream_seq) win. The default fold counts at
most ts*, because what is dated ahead could never be corrected (D-175). Everything else is the same.
"""

from dataclasses import replace
from typing import Any, Final

from veen.core.cbor import U64_MAX
from veen.overlays.framework.schema import Typed
from veen.overlays.id.bodies import CtxProfile, ExternalLink, GroupChange, HandleMap, OrgProfile
from veen.overlays.id.fold import IdFold
from veen.overlays.id.state import IdRecords

_DATED: Final = (CtxProfile, OrgProfile, GroupChange, HandleMap, ExternalLink)


class LetterIdFold(IdFold):
    """Fold of identities by the letter. Its own state class keeps its states apart from those of the default.

    Who speaks for whom is not asked either: the text knows no such rule.
    """

    name = "id.letter"
    version = 1

    def add(self, into: IdRecords, event: Typed[Any]) -> None:
        e, body = event
        if isinstance(body, _DATED):  # its place in the log stays; only nothing bounds its own time
            e = replace(e, ts=U64_MAX, placed=e.ts if e.placed is None else e.placed)
        super().add(into, Typed(e, body))
