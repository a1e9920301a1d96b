"""Rules and advice about messages for the clients of a person or program, by what its keyring has."""

from importlib import import_module
from typing import Any, Final

from veen.client.identity.keyring import Keyring
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.policies import realm_id_of

# An identity with the keys of this stream is part of a recorder. A product may be named here only: it is a room above.
_RECORDER: Final = (stream_id_of("record/infrastructure/changes"), "veen.products.recorder.rules")
_CLASSES_ID: Final = Ht("veen/label-class", realm_id_of("default"))  # of the default realm (001 spec-2 §1.3)


def rules_of(keyring: Keyring) -> dict[str, Any]:
    """Return the options of `Client.connect` about rules and advice. Modules are imported only if they are needed."""
    options: dict[str, Any] = {}
    if keyring.has(_RECORDER[0]):
        options["rules"] = [import_module(_RECORDER[1]).RecorderRules()]
    if keyring.has(_CLASSES_ID):
        from veen.api.label_advice import LabelClassAdvisor

        options["advisor"] = LabelClassAdvisor()
    return options
