# The types of the names that __init__.py imports when they are first used.
from veen import testing as testing
from veen.api.blocking import HubConnection as HubConnection
from veen.api.blocking import StreamHandle as StreamHandle
from veen.api.blocking import connect as connect
from veen.api.entries import StreamEntry as StreamEntry
from veen.api.evidence import EvidenceBundle as EvidenceBundle
from veen.api.evidence import EvidenceCheck as EvidenceCheck
from veen.api.evidence import verify as verify
from veen.api.hubs import AsyncHubConnection as AsyncHubConnection
from veen.api.hubs import AsyncStream as AsyncStream
from veen.api.hubs import aconnect as aconnect
from veen.core.errors import VeenError

Error = VeenError
__version__: str
