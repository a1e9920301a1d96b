"""Rules and advice about messages for the clients of a person or program, by what its keyring has."""

from typing import Any, Final

from veen.client.identity.keyring import Keyring
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.policies import realm_id_of

_RECORDER_ID: Final = stream_id_of("record/infrastructure/changes")  # whoever has its keys is part of a recorder
_CLASSES_ID: Final = Ht("veen/label-class", realm_id_of("default"))  # of the default realm (001 spec-2 §1.3)


def rules_of(keyring: Keyring) -> dict[str, Any]:
    """Return the options of `Client.connect` about rules and advice. Modules are imported only if they are needed."""
    options: dict[str, Any] = {}
    if keyring.has(_RECORDER_ID):
        from veen.products.recorder.rules import RecorderRules

        options["rules"] = [RecorderRules()]
    if keyring.has(_CLASSES_ID):
        from veen.products.policy.label_advice import LabelClassAdvisor

        options["advisor"] = LabelClassAdvisor()
    return options
