"""One declaration gives every form of an object, with faults ranked as the spec ranks them (spec §3.1, §8.2)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

from veen.core import cbor
from veen.core.errors import FieldSizeError, MalformedError, VersionError
from veen.core.wire import (
    LEFT_OUT_EMPTY,
    LOCAL,
    Anything,
    Bytes32,
    Choice,
    Fields,
    Fixed,
    Form,
    Integer,
    Length,
    Map,
    Name,
    Part,
    Size,
    TextMap,
    Uint,
    Version,
    Wire,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Part):
    KIND: ClassVar[str] = "inner"

    unit: ClassVar[Fixed] = "kg"
    amount: Integer
    class_name: Annotated[str, Name("class")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Map):
    KIND: ClassVar[str] = "outer"

    key: Bytes32
    nonce: Annotated[bytes, Size(2)]
    blob: bytes
    word: Annotated[str, Choice("yes", "no")]
    flag: bool
    count: Uint | None = None
    hashes: Annotated[tuple[Bytes32, ...], Length(1, 2)]
    names: Annotated[tuple[str, ...], Length(0, 2)] | None = None
    inner: Inner
    more: Annotated[tuple[Inner, ...], Length(0, 1)]
    info: TextMap | None = None
    value: Anything
    cache: Annotated[int, LOCAL] = 7

    def _check(self) -> None:
        if self.blob == b"bad":
            raise MalformedError("a rule that types cannot express", "outer.blob")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Wire):
    KIND: ClassVar[str] = "row"
    FORM: ClassVar[Form] = "array"

    ver: ClassVar[Version] = 1
    first: Uint | None
    last: Annotated[tuple[Bytes32, ...], Length(1, 2)] | None = None


OUTER = Outer(
    key=bytes(32),
    nonce=b"ab",
    blob=b"",
    word="yes",
    flag=True,
    hashes=(bytes(32),),
    inner=Inner(amount=-1, class_name="c"),
    more=(),
    info={"b": 1, "a": 2},
    value=None,
)
TREE = {
    1: 1,
    2: bytes(32),
    3: b"ab",
    4: b"",
    5: "yes",
    6: True,
    8: [bytes(32)],
    10: {1: "kg", 2: -1, 3: "c"},
    11: [],
    12: {"a": 2, "b": 1},
    13: None,
}


def test_a_declaration_gives_cbor_and_json():
    assert OUTER.to_bytes() == cbor.encode(TREE)
    assert Outer.from_bytes(cbor.encode(TREE)) == OUTER
    assert OUTER.to_json()["inner"] == {"unit": "kg", "amount": -1, "class": "c"}
    assert Outer.from_json(OUTER.to_json()) == OUTER
    assert list(OUTER.to_json()) == [
        field.name for field in Outer.wire_fields() if field.name not in ("count", "names")
    ]


def test_what_is_local_is_not_on_the_wire():
    assert Outer(**{**_values(OUTER), "cache": 8}).to_bytes() == OUTER.to_bytes()


def _values(obj: Any) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__slots__}


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ([1, None], Row(first=None)),
        ([1, 5, [bytes(32)]], Row(first=5, last=(bytes(32),))),
    ],
)
def test_in_an_array_an_optional_field_is_null_and_the_last_is_left_out(tree, what):
    assert what.to_tree() == tree
    assert Row.from_tree(tree) == what
    with pytest.raises(MalformedError):
        Row.from_tree([1, 5, None])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({1: 2}, VersionError),
        ({1: 2, 2: b"short"}, FieldSizeError),
        ({1: 2, 2: b"short", 6: 0}, MalformedError),  # a type ranks above a size, and that above the version
        ({8: []}, FieldSizeError),
        ({8: [b""], 1: 2}, FieldSizeError),
        ({4: b"bad", 1: 2, 2: b"short"}, MalformedError),  # so does a rule
        ({5: "maybe"}, MalformedError),
        ({10: {1: "lb", 2: -1, 3: "c"}}, MalformedError),
        ({10: {1: "kg", 2: -1}}, MalformedError),
        ({99: 1}, MalformedError),
    ],
)
def test_faults_are_ranked(changes, error):
    tree = dict(sorted({**TREE, **changes}.items()))
    with pytest.raises(error):
        Outer.from_tree(tree)


def test_what_is_no_wire_type_is_named():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Bad(Part):
        KIND: ClassVar[str] = "bad"

        number: int

    with pytest.raises(TypeError, match=r"Bad\.number: <class 'int'> is not a wire type"):
        Bad(number=1).to_bytes()


def test_an_object_may_read_and_write_itself():
    """As overlays did before there were declarations: plain types, and both methods by hand."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ByHand(Wire):
        KIND: ClassVar[str] = "by hand"
        FORM: ClassVar[Form] = "body"

        number: int

        @classmethod
        def _read(cls, f: Fields) -> "ByHand":
            return cls(number=f.uint("number"))

        def _write(self) -> dict[str, Any]:
            return {"number": self.number}

    assert ByHand.from_bytes(ByHand(number=3).to_bytes()) == ByHand(number=3)
    assert ByHand.from_json({"number": 3}).present_fields() == [("number", 3)]


def test_schemas_and_words_follow_from_the_declaration():
    fields = {field.name: field for field in Outer.wire_fields()}
    assert fields["ver"].type.schema == {"const": 1}
    assert fields["nonce"].type.words == "2 bytes"
    assert fields["word"].type.schema == {"enum": ["no", "yes"]}
    assert fields["hashes"].type.words == "array of 1 to 2 × 32 bytes"
    assert fields["more"].type.parts == (Inner,)
    assert [name for name, field in fields.items() if field.optional] == ["count", "names", "info"]


def test_a_list_may_be_left_out_when_it_has_no_element():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Bag(Part, kind="bag"):
        items: Annotated[tuple[Bytes32, ...], Length(1, 2), LEFT_OUT_EMPTY] = ()
        name: str

    assert Bag.KIND == "bag"
    empty, full = Bag(name="a"), Bag(items=(bytes(32),), name="a")
    assert [empty.to_tree(), full.to_tree()] == [{2: "a"}, {1: [bytes(32)], 2: "a"}]
    assert [Bag.from_bytes(bag.to_bytes()) for bag in (empty, full)] == [empty, full]
    assert Bag.from_json(empty.to_json()) == empty
    with pytest.raises(FieldSizeError):
        Bag.from_tree({1: [], 2: "a"})
