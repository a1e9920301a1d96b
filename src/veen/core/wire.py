"""Wire objects: each class declares its fields once, and all of its forms follow from the declaration.

The dataclass fields of an object are its wire fields, in the order of the spec; their annotations say what each may
hold. CBOR, JSON, the OpenAPI document and the pages of docs/ that list fields are derived from them:

    class Receipt(Wire, kind="RECEIPT"):          # the spec's name, for people
        ver: ClassVar[Version] = 1                # a constant is a class variable
        label: Bytes32                            # a byte string of 32 bytes; `bytes` has any length
        stream_seq: Uint                          # `Integer` may be negative
        note: str | None = None                   # optional; `bool` is true or false
        peaks: Annotated[tuple[Bytes32, ...], Length(0, 64)]
        coids: Annotated[tuple[Bytes32, ...], Length(1, 8), LEFT_OUT_EMPTY] = ()   # () is written as no field
        mode: Annotated[str, Choice("full", "light")]
        inner: Allow                              # another wire object
        body: Anything                            # free-form; also PlainMap and TextMap
        name: Annotated[str, Name("class")]       # where Python reserves the name that the spec has
        cache: Annotated[int, LOCAL]              # no wire field at all

Arrays go by position; maps have the keys 1, 2, 3 … in the same order (spec §3.1), so the position is the key there as
well; the bodies of typed payloads are maps with text keys in listed order (D-02). In JSON, arrays stay arrays, maps use
the names and byte strings are lower-case hex (D-62).

Which fault is reported is part of the protocol (spec §8.2): a wrong type anywhere ranks above a wrong size
anywhere, and that above an unknown version. `Fields` therefore raises the first at once and keeps the other
two until the object has been read to its end.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from veen.core import cbor
from veen.core.errors import FieldSizeError, MalformedError, VersionError

VERSION: Final = 1

Json = Any  # what json.loads gives and json.dumps takes
Form = Literal["array", "map", "body"]  # by position · by integer key · by text key in listed order
Schema = dict[str, Any]  # of JSON, as OpenAPI 3.1 has it

T = TypeVar("T")
W = TypeVar("W", bound="Wire")

_ABSENT: Final = object()


class _Null:
    """Null as a value: None in `_write` means that the field is absent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL: Final = _Null()  # for the few fields of bodies in which null says something (D-04)


class _Faults:
    """The faults that wait until the whole object has been read."""

    __slots__ = ("size", "version")

    def __init__(self) -> None:
        self.size: FieldSizeError | None = None
        self.version: VersionError | None = None

    def raise_first(self) -> None:
        if self.size is not None:
            raise self.size
        if self.version is not None:
            raise self.version


class Fields:
    """A cursor over the fields of one object. Names serve error messages and the JSON form.

    Objects that declare their fields never call it; those with a `_read` of their own take field after field from it.
    """

    __slots__ = ("_by_name", "_depth", "_faults", "_form", "_json", "_left", "_position", "_what")

    def __init__(
        self,
        what: str,
        tree: cbor.Item,
        form: Form,
        *,
        json: bool = False,
        faults: _Faults | None = None,
        depth: int = 0,
    ) -> None:
        self._what, self._form, self._json = what, form, json
        self._by_name = form == "body" or (json and form == "map")  # else by position
        self._depth = depth + 1  # of what lies inside this object
        self._position = 0
        self._faults = faults or _Faults()
        if form == "array":
            if type(tree) is not list:
                raise MalformedError(f"expected an array, found {_kind(tree)}", what)
            self._left: dict[Any, Any] = dict(enumerate(tree, start=1))
        else:
            if type(tree) is not dict:
                raise MalformedError(f"expected a map, found {_kind(tree)}", what)
            self._left = dict(tree)

    # --- one field each, in the order of the spec -------------------------------------------------------

    def version(self, name: str = "ver") -> None:
        """Read `ver`, which must be 1. Another version is reported by `done`, after all other faults."""
        value = self.uint(name)
        if value != VERSION and self._faults.version is None:
            self._faults.version = VersionError(self._what, value)

    def uint(self, name: str) -> int:
        value = self._next_of(name, int)
        if not 0 <= value <= cbor.U64_MAX:
            raise MalformedError("expected an unsigned 64-bit integer", self._at(name))
        return value

    def bstr(self, name: str, size: int) -> bytes:
        value = self._next(name)
        if self._json or type(value) is not bytes:
            value = self._bytes(value, name)
        if len(value) != size:
            self._size_fault(name, f"{size} bytes", len(value))
        return value

    def blob(self, name: str) -> bytes:
        """Read a byte string of any length."""
        return self._bytes(self._next(name), name)

    def text(self, name: str) -> str:
        value = self._next_of(name, str)
        cbor.check(value, self._at(name))
        return value

    def flag(self, name: str) -> bool:
        return self._next_of(name, bool)

    def bstrs(self, name: str, size: int, at_most: int, at_least: int = 0) -> tuple[bytes, ...]:
        """Read a list of byte strings of one size."""
        values = tuple(self._bytes(value, name) for value in self._list(name, at_least, at_most))
        for value in values:
            if len(value) != size:
                self._size_fault(name, f"{size} bytes each", len(value))
        return values

    def blobs(self, name: str, at_most: int, at_least: int = 0) -> tuple[bytes, ...]:
        """Read a list of byte strings of any length."""
        return tuple(self._bytes(value, name) for value in self._list(name, at_least, at_most))

    def object(self, name: str, cls: type[W]) -> W:
        return self._object(self._next(name), self._at(name), cls)

    def objects(self, name: str, cls: type[W], at_most: int, at_least: int = 0) -> tuple[W, ...]:
        where = self._at(name)
        return tuple(self._object(value, where, cls) for value in self._list(name, at_least, at_most))

    def free(self, name: str) -> dict[str, Any]:
        """Read a free-form map with text keys, sorted by encoded key (D-03, D-57).

        Byte strings are refused inside: in JSON they could not be distinguished from text.
        """
        value = self._next_of(name, dict)
        cbor.check(value, self._at(name), self._depth)  # CBOR was checked as a whole; JSON was not
        if not _is_plain(value):
            raise MalformedError("expected text keys and no byte strings", self._at(name))
        if not self._json and not cbor.is_sorted(value):
            raise MalformedError("map keys are not sorted", self._at(name))
        return value

    def integer(self, name: str) -> int:
        """Read an integer that may be negative (D-05)."""
        value = self._next_of(name, int)
        cbor.check(value, self._at(name))
        return value

    def choice(self, name: str, options: Collection[str]) -> str:
        """Read a text that must be one of a few words."""
        value = self._next_of(name, str)
        if value not in options:
            raise MalformedError(f"expected one of {', '.join(sorted(options))}", self._at(name))
        return value

    def texts(self, name: str, at_most: int, at_least: int = 0) -> tuple[str, ...]:
        """Read a list of texts."""
        where = self._at(name)
        values = tuple(self._list(name, at_least, at_most))
        for value in values:
            if type(value) is not str:
                raise MalformedError(f"expected a text string, found {_kind(value)}", where)
            cbor.check(value, where)
        return values

    def anything(self, name: str) -> Any:
        """Read a free-form value (D-03): keys in any order, null is a value. In JSON, bytes come back as text."""
        value = self._next(name)
        cbor.check(value, self._at(name), self._depth)  # CBOR was checked as a whole; JSON was not
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Read a free-form map with text keys (D-03)."""
        value = self.anything(name)
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise MalformedError("expected a map with text keys", self._at(name))
        return value

    def has(self, name: str) -> bool:
        """Return True if the field is present, even as null: for bodies in which null is a value (D-04)."""
        return self._key(name) in self._left

    def optional(self, read: Callable[..., T], name: str, *args: Any, **kwargs: Any) -> T | None:
        """Read an optional field: null in an array, omitted from a map (spec §3.1, D-04).

        Bodies are written by omission too, but null is understood when read.
        """
        return None if self.skip_absent(name) else read(name, *args, **kwargs)

    def skip_absent(self, name: str) -> bool:
        """Return True if an optional field has no value, and move the cursor past it."""
        value = self._left.get(self._key(name), _ABSENT)
        if value is None and self._form != "map":
            self._next(name)
            return True
        if value is _ABSENT and self._form != "array":
            self._position += 1
            return True
        return False

    def is_trimmed(self, name: str) -> bool:
        """Return True if the last field of an array is omitted, which is not null (spec §4.4)."""
        return not self._left

    def peek(self, name: str) -> Any:
        """Return the next field without moving the cursor: for a field that may hold one of several objects."""
        return self._left.get(self._key(name))

    def more(self) -> bool:
        """Return True if fields are left: a trailing optional field of an array is trimmed, not null (spec §4.4)."""
        return bool(self._left)

    def done(self) -> None:
        """Raise a FormatError if fields are left over; then raise the faults that waited."""
        if self._left:
            raise MalformedError(f"unknown, repeated or misplaced field {next(iter(self._left))!r}", self._what)
        self._faults.raise_first()

    # --- how a value is taken ---------------------------------------------------------------------------

    def _key(self, name: str) -> int | str:
        return name if self._by_name else self._position + 1

    def _next(self, name: str) -> Any:
        self._position += 1
        key = name if self._by_name else self._position
        # In CBOR the wanted key must also be the first one left: that is what ascending order means.
        if key not in self._left or (not self._json and next(iter(self._left)) != key):
            raise MalformedError("missing or misplaced", self._at(name))
        return self._left.pop(key)

    def _next_of(self, name: str, kind: type[T]) -> T:
        value = self._next(name)
        if type(value) is not kind:  # exact: a bool is an int to Python, but not to the spec
            raise MalformedError(f"expected {_kind_name(kind)}, found {_kind(value)}", self._at(name))
        return value

    def _bytes(self, value: Any, name: str) -> bytes:
        if self._json:
            return _from_hex(value, self._at(name))
        if type(value) is not bytes:
            raise MalformedError(f"expected a byte string, found {_kind(value)}", self._at(name))
        return value

    def _list(self, name: str, at_least: int, at_most: int) -> list[Any]:
        values = self._next_of(name, list)
        if not at_least <= len(values) <= at_most:
            self._size_fault(name, f"{at_least} to {at_most} elements", len(values))
        return values

    def _object(self, value: Any, where: str, cls: type[W]) -> W:
        fields = Fields(where, value, cls.FORM, json=self._json, faults=self._faults, depth=self._depth)
        obj = cls._read(fields)
        if fields._left:
            raise MalformedError(f"unknown, repeated or misplaced field {next(iter(fields._left))!r}", where)
        return obj

    def _size_fault(self, name: str, expected: str, actual: int) -> None:
        if self._faults.size is None:
            self._faults.size = FieldSizeError(self._at(name), expected, actual)

    def _at(self, name: str) -> str:
        return f"{self._what}.{name}"


# --- what a field may hold ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: a schema has no hash
class WireType:
    """One kind of field: how it is read and written, and how the documents describe it."""

    read: Callable[..., Any]  # called with the cursor, the name, and `args`
    args: tuple[Any, ...]
    words: str  # in docs/spec/objects.md
    schema: Schema  # in docs/openapi.json
    parts: "tuple[type[Wire], ...]" = ()  # the objects that `schema` refers to
    write: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of the number of elements of a list."""

    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Name:
    """The name on the wire, where it is not a valid name in Python."""

    name: str


LOCAL: Final = Name("")  # a dataclass field that is not on the wire
LEFT_OUT_EMPTY: Final = object()  # a list of which the field is left out when it has no element


def _hex(size: int | None) -> Schema:
    digits = "([0-9a-f]{2})*" if size is None else f"[0-9a-f]{{{2 * size}}}"
    return {"type": "string", "pattern": f"^{digits}$"}


def Size(size: int) -> WireType:  # noqa: N802 - written where types are
    """Return the type of a byte string of `size` bytes."""
    return WireType(Fields.bstr, (size,), f"{size} bytes", _hex(size))


def Choice(*options: str) -> WireType:  # noqa: N802 - written where types are
    """Return the type of a text that is one of a few words."""
    words = sorted(options)
    return WireType(Fields.choice, (frozenset(options),), "one of " + ", ".join(words), {"enum": words})


def reference(cls: "type[Wire]") -> Schema:
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _constant(f: Fields, name: str, value: str) -> None:
    actual = f.text(name)
    if actual != value:
        raise MalformedError(f"v0.0.1 allows only {value!r}, found {actual!r}", f._at(name))


_OBJECT: Final[Schema] = {"type": "object"}
_BLOB: Final = WireType(Fields.blob, (), "bytes", _hex(None))
_TEXT: Final = WireType(Fields.text, (), "text", {"type": "string"})
_FLAG: Final = WireType(Fields.flag, (), "true or false", {"type": "boolean"})
_PLAIN: Final = {bytes: _BLOB, str: _TEXT, bool: _FLAG}
_VERSION: Final = WireType(Fields.version, (), str(VERSION), {"const": VERSION})
_FIXED: Final = WireType(_constant, (), "text", {"type": "string"})

Uint = Annotated[int, WireType(Fields.uint, (), "uint", {"type": "integer", "minimum": 0, "maximum": cbor.U64_MAX})]
Integer = Annotated[int, WireType(Fields.integer, (), "int", {"type": "integer"})]
Bytes32 = Annotated[bytes, Size(32)]
Bytes64 = Annotated[bytes, Size(64)]
Version = Annotated[int, _VERSION]
Fixed = Annotated[str, _FIXED]
PlainMap = Annotated[dict[str, Any], WireType(Fields.free, (), "map with text keys", _OBJECT, write=cbor.sort_keys)]
TextMap = Annotated[dict[str, Any], WireType(Fields.mapping, (), "map with text keys", _OBJECT, write=cbor.sort_keys)]
Anything = Annotated[Any, WireType(Fields.anything, (), "anything", {}, write=cbor.sort_keys)]


# --- from a declaration to its fields -------------------------------------------------------------------


class WireField(NamedTuple):
    """One field of an object, as declared."""

    attribute: str
    name: str  # on the wire
    type: WireType
    optional: bool = False
    constant: bool = False
    absent: object = None  # the value of an optional field that is left out


class _Functions(NamedTuple):
    """Reading and writing of one class, generated from its declaration."""

    read: Callable[[Any, Fields], Any]
    write: Callable[[Any], dict[str, Any]]


def _field(cls: "type[Wire]", attribute: str, hint: Any) -> WireField | None:
    constant = get_origin(hint) is ClassVar
    if constant:
        (hint,) = get_args(hint)
        if not any(isinstance(mark, WireType) for mark in getattr(hint, "__metadata__", ())):
            return None  # KIND, FORM and their like
    inner, optional = _without_none(hint)
    marks = getattr(inner, "__metadata__", ()) + getattr(hint, "__metadata__", ())
    name = next((mark.name for mark in marks if isinstance(mark, Name)), attribute)
    if not name:
        return None
    kind = _type_of(inner)
    if kind is None:
        raise TypeError(f"{cls.__name__}.{attribute}: {hint} is not a wire type (see veen.core.wire)")
    if kind is _FIXED:
        value = getattr(cls, attribute)
        kind = WireType(_constant, (value,), f'"{value}"', {"const": value})
    if LEFT_OUT_EMPTY in marks:
        return WireField(attribute, name, kind, optional=True, absent=())
    return WireField(attribute, name, kind, optional, constant)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType) or NoneType not in get_args(hint):
        return hint, False
    (inner,) = (part for part in get_args(hint) if part is not NoneType)
    return inner, True


def _type_of(hint: Any, count: Length | None = None) -> WireType | None:
    if get_origin(hint) is Annotated:
        base, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, WireType):
                return mark
            if isinstance(mark, Length):
                count = mark
        return _type_of(base, count)
    if isinstance(hint, type) and issubclass(hint, Wire):
        return WireType(Fields.object, (hint,), hint.KIND, reference(hint), (hint,))
    if get_origin(hint) is not tuple or count is None:
        return _PLAIN.get(hint)
    element = _type_of(get_args(hint)[0])
    if element is None or element.read not in _LISTS:
        return None
    read = _LISTS[element.read]
    words = f"array of {count.at_least} to {count.at_most} × {element.words}"
    schema = {"type": "array", "items": element.schema, "minItems": count.at_least, "maxItems": count.at_most}
    return WireType(read, (*element.args, count.at_most, count.at_least), words, schema, element.parts)


_LISTS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    Fields.blob: Fields.blobs,
    Fields.bstr: Fields.bstrs,
    Fields.text: Fields.texts,
    Fields.object: Fields.objects,
}


def _null_if_none(value: Any) -> Any:
    return NULL if value is None else cbor.sort_keys(value)


# Filled when a class is first read or written; two threads that come first at once make equal functions.
_GENERATED: Final[dict[type[Any], _Functions]] = {}


def _generate(cls: "type[Wire]") -> _Functions:
    """Generate straight-line code, as dataclasses does: a loop over the fields takes a third longer (decision 108)."""
    fields = cls.wire_fields()
    last = fields[-1] if fields and cls.FORM == "array" and fields[-1].optional else None
    names: dict[str, Any] = {}
    read, write, arguments = [], [], []
    for number, field in enumerate(fields):
        names |= {f"read{number}": field.type.read, f"args{number}": field.type.args}
        args = "".join(f", args{number}[{at}]" for at in range(len(field.type.args)))
        value = f"read{number}(f, {field.name!r}{args})"
        if field.optional:
            value = (
                f"{field.absent} if f.{'is_trimmed' if field is last else 'skip_absent'}({field.name!r}) else {value}"
            )
        read.append(value if field.constant else f"value{number} = {value}")
        if not field.constant:
            arguments.append(f"{field.attribute}=value{number}")
        stored = f"self.{field.attribute}"
        if field.type.write is not None:
            names[f"write{number}"] = field.type.write if field.optional else _null_if_none
            stored = f"write{number}({stored})"
        if field.absent is not None:
            stored = f"{stored} or None"
        write.append(f"{field.name!r}: {stored}")
    read.append(f"self = cls({', '.join(arguments)})")
    if cls._check is not Wire._check:
        read.append("self._check()")
    trim = [] if last is None else [f"if self.{last.attribute} is None: del fields[{last.name!r}]"]
    source = (
        _function("read(cls, f)", [*read, "return self"]),
        _function("write(self)", [f"fields = {{{', '.join(write)}}}", *trim, "return fields"]),
    )
    exec("\n".join(source), names)  # noqa: S102 - made of the declarations of our classes alone
    functions = _GENERATED[cls] = _Functions(names["read"], names["write"])
    return functions


def _function(head: str, lines: list[str]) -> str:
    return "\n    ".join((f"def {head}:", *lines))


class Wire:
    """Base of the wire objects: frozen dataclasses with `from_bytes`/`to_bytes` and `from_json`/`to_json`."""

    __slots__ = ()

    KIND: ClassVar[str]  # the spec's name, for people: `kind` where a class is declared
    FORM: ClassVar[Form]
    MAX_BYTES: ClassVar[int] = cbor.MAX_ITEM_BYTES
    # Judged before a large input is decoded: a byte of CBOR can become 64 bytes of memory. No object has as many;
    # the largest, a page of 1000 entries, has some 30,000.
    MAX_ITEMS: ClassVar[int] = 1 << 20

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:  # a dataclass with slots is made twice, the second time without `kind`
            cls.KIND = kind

    @classmethod
    def wire_fields(cls) -> tuple[WireField, ...]:
        """Return the fields on the wire, in order."""
        hints = get_type_hints(cls, include_extras=True)
        fields = (_field(cls, attribute, hint) for attribute, hint in hints.items())
        return tuple(field for field in fields if field is not None)

    @classmethod
    def _read(cls, f: Fields) -> Self:
        """Take every field, in order. Overridden only where one field decides how another is read."""
        functions = _GENERATED.get(cls) or _generate(cls)
        obj: Self = functions.read(cls, f)
        return obj

    def _check(self) -> None:
        """Check rules that types cannot express, after all fields were read; raise MalformedError, or InvalidBody in a
        body.
        """

    def _write(self) -> dict[str, Any]:
        """Return every field by name, in order; None is null in an array and omitted from a map."""
        functions = _GENERATED.get(type(self)) or _generate(type(self))
        return functions.write(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical encoding; raise FormatError for anything else (I10)."""
        return cls.from_tree(cbor.decode(data, what=cls.KIND, max_bytes=cls.MAX_BYTES, max_items=cls.MAX_ITEMS))

    @classmethod
    def from_bytes_unchecked(cls, data: bytes) -> Self:
        """Read bytes that `from_bytes` has accepted before: that they are canonical is not checked again."""
        return cls.from_tree(cbor.decode_unchecked(data))

    def to_bytes(self) -> bytes:
        """Return the one canonical encoding; raise FormatError if the values are not legal on the wire."""
        tree = self.to_tree()
        data = cbor.encode(tree)
        self.from_tree(tree)
        return data

    def to_bytes_unchecked(self) -> bytes:
        """Return the encoding of an object that was read from the wire, without checking it again."""
        return cbor.encode_unchecked(self.to_tree())

    @classmethod
    def from_tree(cls, tree: cbor.Item) -> Self:
        """Read an item that `cbor.decode` returned."""
        return cls._from(Fields(cls.KIND, tree, cls.FORM))

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Read the JSON form (D-62): the same rules, names for keys, hex for bytes."""
        return cls._from(Fields(cls.KIND, value, cls.FORM, json=True))

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        obj = cls._read(fields)
        fields.done()
        return obj

    def to_tree(self) -> cbor.Item:
        return _tree(self)

    def present_fields(self) -> list[tuple[str, Any]]:
        """Return every field that is present, by the name that the spec gives it."""
        return [(name, value) for name, value in self._write().items() if value is not None or self.FORM == "array"]

    def to_json(self) -> Json:
        return _json(self)

    def _repr_html_(self) -> str:
        """Return a table for notebooks. Fields that `repr` hides stay hidden."""
        from veen.core.html import of_wire

        return of_wire(self)


class Map(Wire):
    """A map that begins with `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"

    ver: ClassVar[Version] = VERSION


class Part(Wire):
    """A map inside another object: no `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"


_LEAVES: Final = frozenset((bytes, int, str, bool, type(None)))


def _tree(value: Any) -> Any:
    if type(value) in _LEAVES:
        return value
    if value is NULL:
        return None
    if isinstance(value, Wire):
        fields = value._write()
        if value.FORM == "array":
            return [_tree(field) for field in fields.values()]
        if value.FORM == "body":
            return {name: _tree(field) for name, field in fields.items() if field is not None}
        return {key: _tree(field) for key, field in enumerate(fields.values(), start=1) if field is not None}
    if isinstance(value, (tuple, list)):
        return [_tree(element) for element in value]
    if isinstance(value, Mapping):
        return {key: _tree(element) for key, element in value.items()}
    return value


def _json(value: Any) -> Json:
    if isinstance(value, Wire):
        fields = value._write()
        if value.FORM == "array":
            return [_json(field) for field in fields.values()]
        return {name: _json(field) for name, field in fields.items() if field is not None}
    if isinstance(value, bytes):
        return value.hex()
    if value is NULL:
        return None
    if isinstance(value, (tuple, list)):
        return [_json(element) for element in value]
    if isinstance(value, Mapping):
        return {_json(key): _json(element) for key, element in value.items()}
    return value


def _from_hex(value: Any, where: str) -> bytes:
    if type(value) is str and value == value.lower():
        try:
            data = bytes.fromhex(value)
        except ValueError:
            pass
        else:
            if len(data) * 2 == len(value):  # fromhex also skips white space
                return data
    raise MalformedError("expected a byte string in lower-case hex", where)


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(element) for key, element in value.items())
    if type(value) is list:
        return all(_is_plain(element) for element in value)
    return type(value) in (str, int, bool)


_NAMES: Final = {
    int: "an integer",
    bytes: "a byte string",
    str: "a text string",
    bool: "true or false",
    list: "an array",
    dict: "a map",
    type(None): "null",
}


def _kind_name(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)


def _kind(value: Any) -> str:
    return _kind_name(type(value))
