"""The nouns of the identity overlay under `veen id`, as `veen.overlays.id.nouns` declares them."""

from veen.cli.identity.args import id_options
from veen.cli.shared.as_of import view_options
from veen.cli.shared.nouns import MAKE_KEYS, NounGroup, index


def __getattr__(name: str) -> NounGroup:
    """Return the group of a noun."""
    noun = f"veen.overlays.id.nouns:{name}"
    group = NounGroup(name, index()[noun]["about"], writes=[id_options, MAKE_KEYS], reads=[view_options, id_options])
    group.declare(
        noun,
        lambda declared, values: values.pop("realm"),
        list_text="{} From every stream of identities that you can read.",
        show_text="{} Now, or as of a moment.",
    )
    return group
