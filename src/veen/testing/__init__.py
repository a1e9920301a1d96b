"""For tests of VEEN and of what is built on it: a real hub in this process, and fakes of the real interfaces.

`hub` runs a hub for a test, and `veen_hub` is the same as a fixture of pytest. `FakeLog` and `FakeHub` are a log and a
hub in memory, for tests of overlays; `check_laws` tries the laws that every fold must keep. The other modules are for
VEEN's own tests: `memfs` is a disk that fails, `hostile` a hub that lies.
"""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.testing.events import FakeLog, label_of
    from veen.testing.hubs import RunningHub, hub
    from veen.testing.laws import check_laws
    from veen.testing.links import FakeHub

__all__ = [
    "FakeHub",
    "FakeLog",
    "RunningHub",
    "check_laws",
    "hub",
    "label_of",
]

__getattr__ = names_of(
    __name__,
    {
        "FakeHub": "veen.testing.links:FakeHub",
        "FakeLog": "veen.testing.events:FakeLog",
        "RunningHub": "veen.testing.hubs:RunningHub",
        "check_laws": "veen.testing.laws:check_laws",
        "hub": "veen.testing.hubs:hub",
        "label_of": "veen.testing.events:label_of",
    },
)
