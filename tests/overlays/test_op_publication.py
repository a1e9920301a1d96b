"""data.publication.v1 and content roots (001 spec-3 §6, D-157)."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.overlays.operation_builders import ALICE, BOB, ID, MAIN, OTHER_ID, SIDE, codes, view

from veen.core.errors import FormatError
from veen.core.hashing import Ht, u32be, u64be
from veen.overlays.framework.schema import Violation
from veen.overlays.operations.content import BadPath, ContentFile, list_root, tree_root
from veen.overlays.operations.publication import PublicationFold, check_content, publish
from veen.testing.events import FakeLog


def published(version="v1.0.0", *, publisher=ALICE, publication_id=ID, root=MAIN):
    fields = {"content_root": root, "content_form": "tree", "content_class": "model"}
    return publish(publication_id, publisher, version=version, **fields)


@pytest.mark.req("PUB-04")
def test_a_version_is_published_once():
    """P1: the first in logical order counts."""
    log = FakeLog()
    log.append(published())
    log.append(published(root=SIDE))
    log.append(published("v1.0.1", root=SIDE))
    assert codes(PublicationFold(), log) == [(2, "PUB.DUPLICATE")]
    assert view(PublicationFold(), log).versions[ID, "v1.0.0"].content_root == MAIN


@pytest.mark.req("PUB-01")
def test_nobody_publishes_under_the_name_or_the_id_of_another():
    log = FakeLog()
    log.append(published(), client="mallory")
    log.append(published())
    log.append(published("v2.0.0", publisher=BOB), client="bob")
    log.append(published("v2.0.0", publisher=BOB, publication_id=OTHER_ID), client="bob")
    assert codes(PublicationFold(), log) == [(1, "PUB.SPEAKER"), (3, "PUB.OWNER")]


def test_a_publication_has_a_version_and_a_class():
    with pytest.raises(FormatError, match=r"PUB\.VERSION"):
        published("")
    with pytest.raises(FormatError, match=r"PUB\.VERSION"):
        publish(ID, ALICE, content_root=MAIN, content_form="list", content_class="", version="1")


@pytest.mark.req("PUB-05")
def test_readers_choose_which_version_survives():
    """P2."""
    log = FakeLog()
    for version in ("v1.9.0", "v1.10.0", "2.0.0-rc.2", "2.0.0-rc.10", "nightly", "v1.2.0"):
        log.append(published(version))
    state = view(PublicationFold(), log)
    assert state.current(ID)[0] == "v1.2.0"
    assert state.current(ID, "highest")[0] == "2.0.0-rc.10"
    log.append(published("2.0.0"))
    assert view(PublicationFold(), log).current(ID, "highest")[0] == "2.0.0"
    assert state.current(OTHER_ID) is None


@pytest.mark.req("PUB-03")
def test_an_artefact_is_what_was_published_or_is_named_by_a_code():
    log = FakeLog()
    log.append(published())
    version = view(PublicationFold(), log).versions[ID, "v1.0.0"]
    check_content(version, MAIN)
    with pytest.raises(Violation, match=r"PUB\.ROOT"):
        check_content(version, SIDE)


# --- roots -----------------------------------------------------------------------------------------------------


def file(path, content=b""):
    return ContentFile(path, len(content), sha256(content).digest())


@pytest.mark.req("PUB-02")
def test_roots_are_those_of_the_recommended_tree():
    """Built here by hand: D-93, D-157."""
    a, b, c = (sha256(data).digest() for data in (b"a", b"b", b"c"))
    assert list_root([]) == Ht("veen/content-root", b"")
    assert list_root([a]) == Ht("veen/content-root", a)  # always hashed, as D-13
    node = Ht("veen/content-node", a + b)
    assert list_root([a, b]) == Ht("veen/content-root", node)
    assert list_root([a, b, c]) in (Ht("veen/content-root", c + node), Ht("veen/content-root", node + c))
    leaf = Ht("veen/content-leaf", u32be(3) + b"x/y" + u64be(1) + a)
    assert tree_root([file("x/y", b"a")]) == Ht("veen/content-root", leaf)


@pytest.mark.req("PUB-02", "PUB-03")
@given(st.dictionaries(st.sampled_from(["a", "b", "a/b", "z/ü"]), st.binary(max_size=3), min_size=1), st.randoms())
def test_the_root_of_a_directory_depends_on_paths_and_contents_and_on_nothing_else(contents, random):
    files = [file(path, data) for path, data in contents.items()]
    root = tree_root(files)
    random.shuffle(files)
    assert tree_root(files) == root
    first, *rest = files
    assert tree_root([first._replace(path="other"), *rest]) != root
    assert tree_root([first._replace(size=first.size + 1), *rest]) != root
    assert tree_root([first._replace(sha256=bytes(32)), *rest]) != root
    assert tree_root(rest) != root


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "./a", "a/../b", "u\u0308", "\udcff"])
def test_a_path_that_could_mean_two_things_is_refused(path):
    with pytest.raises(BadPath):
        tree_root([file(path)])


def test_a_path_occurs_once():
    with pytest.raises(BadPath, match="twice"):
        tree_root([file("a"), file("a")])
