"""All labels by (epoch, label), for answers that list them in pages (D-65)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from veen.hub.api.calls import ApiContext
from veen.storage.label_files import LabelFiles, LabelHead

_PAGE: Final = 64  # labels that are looked up in one turn of the event loop


class LabelOrder:
    """All labels in the order of the index; the store adds labels that the index does not have yet."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def __len__(self) -> int:
        return self._context.store.label_count

    def last(self) -> LabelFiles | None:
        """Return the label of the newest entry."""
        return self._context.store.newest

    async def iterate(
        self, epoch_min: int, epoch_max: int, after: bytes | None, limit: int | None = None
    ) -> AsyncIterator[LabelHead]:
        """Yield labels of these epochs in order, after label `after` of the first one; at most `limit`."""
        epoch, left = epoch_min, limit
        while left is None or left > 0:
            page = self._context.store.heads(epoch, after, _PAGE if left is None else min(left, _PAGE))
            for head in page:
                if head.epoch > epoch_max:
                    return
                yield head
            if len(page) < _PAGE:
                return
            epoch, after = page[-1].epoch, page[-1].label
            left = None if left is None else left - len(page)
            await asyncio.sleep(0)
