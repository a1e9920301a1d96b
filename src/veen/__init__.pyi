# The types of the names that __init__.py imports when they are first used.
from veen import testing as testing
from veen.api.blocking import HubConnection as HubConnection
from veen.api.blocking import StreamHandle as StreamHandle
from veen.api.blocking import connect as connect
from veen.api.evidence import EvidenceBundle as EvidenceBundle
from veen.api.evidence import EvidenceCheck as EvidenceCheck
from veen.api.evidence import verify as verify
from veen.api.hubs import AsyncHubConnection as AsyncHubConnection
from veen.api.hubs import AsyncStream as AsyncStream
from veen.api.hubs import StreamEntry as StreamEntry
from veen.api.hubs import aconnect as aconnect
from veen.client.client import Client as Client
from veen.client.errors import Divergence as Divergence
from veen.client.errors import HubRefused as HubRefused
from veen.client.errors import LocalError as LocalError
from veen.client.errors import NetworkError as NetworkError
from veen.client.home import Home as Home
from veen.client.identity.identity import Identity as Identity
from veen.client.identity.keyring import Keyring as Keyring
from veen.client.identity.keyring import StreamKeys as StreamKeys
from veen.client.identity.keystore import create_identity as create_identity
from veen.client.identity.keystore import open_identity as open_identity
from veen.client.send.sealing import Attach as Attach
from veen.client.sync import SyncClient as SyncClient
from veen.client.verify.pin import HubPin as HubPin
from veen.core.crypto.ed25519 import SigningKey as SigningKey
from veen.core.errors import VeenError
from veen.core.objects.captoken import CapToken as CapToken
from veen.lake import folds as folds
from veen.lake import query as query
from veen.lake import tables as tables
from veen.lake.log.keys import KeyFile as KeyFile
from veen.lake.log.keys import write_keys as write_keys
from veen.overlays import crdt as crdt
from veen.overlays import crud as crud
from veen.overlays import id as _id
from veen.overlays import kv as kv
from veen.overlays import operations as operations
from veen.overlays import queue as queue
from veen.overlays import rpc as rpc
from veen.overlays import wallet as wallet
from veen.overlays.recorder import events as _events
from veen.verify.audit import AuditOptions as AuditOptions
from veen.verify.audit import ProcessesEngine as ProcessesEngine
from veen.verify.audit import audit as audit
from veen.verify.audit.report import audit_lines as audit_lines

Error = VeenError
identities = _id
recorder = _events
__version__: str
