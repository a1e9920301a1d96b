"""Nouns that overlays declare, and the commands that follow from them."""

import inspect

from tests.cases import every

import command_index
from veen.cli.lazy import load
from veen.cli.op.write import DIRECT, GRANTS
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.operations.access import GRANT
from veen.overlays.operations.nouns import NOUNS as OPERATIONS
from veen.overlays.operations.schemas import EMBEDDABLE

NOUNS = {
    f"{module}:{noun.name}": noun for module in command_index.DECLARED for noun in load(f"{module}:NOUNS").values()
}


def test_the_index_says_what_the_declarations_say():
    assert command_index.INDEX.read_text("utf-8") == command_index.text(), "run tools/command_index.py"


@every([(f"{name} {verb.name}", verb) for name, noun in NOUNS.items() for verb in noun.verbs], lambda row: row[0])
def test_the_values_of_a_verb_are_fields_of_its_body_unless_they_are_derived(row):
    _, verb = row
    if verb.schema is None:  # a function makes the message
        assert set(inspect.signature(verb.draft).parameters) == set(verb.args)
        return
    fields = {field.attribute for field in verb.schema.body.wire_fields()} | {"expires_at"}
    assert verb.schema is BUILTIN.schemas[verb.schema.id]
    assert set(verb.fixed) <= fields
    if verb.derive is None:
        assert set(verb.args) <= fields
    assert {*verb.any_of, *verb.one_of} <= set(verb.args)
    assert (verb.repeat is None) == (verb.missing == "")


def test_agents_do_what_may_be_embedded_and_grants_mint_a_token():
    verbs = [verb for noun in OPERATIONS.values() for verb in noun.verbs]
    assert {verb.name for verb in verbs if verb.schema is not None and verb.schema.id not in EMBEDDABLE} == set(DIRECT)
    assert {verb.name for verb in verbs if verb.schema is GRANT} == set(GRANTS)
