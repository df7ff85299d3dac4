"""Protobuf messages: written and parsed in plain Python, and decoded by TensorBoard.

`parse_event` returns what the scanner needs of an `Event`, without protobuf. It follows scan.h and
wire.h: of a repeated number or text the last one counts, the pieces of a message are joined, a
field of the wrong wire type is unknown, and a message that cannot be parsed to its end is
malformed. `decode` returns the values of any `Event`, with TensorBoard's protobufs and its
migrations of old files, which `load_protos` imports on first use.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from aboard.system import require

if TYPE_CHECKING:
    import numpy.typing as npt

# The field of Summary.Value that holds a value; the numbers are those of scan.h.
ORIGIN_NONE = 0
ORIGIN_SIMPLE, ORIGIN_IMAGE, ORIGIN_HISTOGRAM, ORIGIN_AUDIO, ORIGIN_TENSOR = 2, 4, 5, 6, 8
ORIGIN_GRAPH, ORIGIN_RUN_METADATA = 104, 108  # kinds of event that become a separate tag

DATA_CLASSES = ("", "scalar", "tensor", "blob_sequence")  # by their numbers in SummaryMetadata
CLASS_UNKNOWN, CLASS_SCALAR, CLASS_OTHER = 0, 1, 2  # by a tag's metadata; as in scan.h

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = 0, 1, 2, 3, 4, 5
_MAX_GROUPS = 100
_U64 = (1 << 64) - 1
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")

# Writing. Empty text and zero integers are left out.


def varint(number: int) -> bytes:
    """Encode an integer in base 128; a negative one as 64-bit two's complement."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{number} does not fit in 64 bits")
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def delimited(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(payload)) + payload


def text_field(field: int, text: str) -> bytes:
    # A lone surrogate, such as in a file name that is not UTF-8, is not an error.
    return delimited(field, text.encode(errors="backslashreplace")) if text else b""


def integer_field(field: int, number: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(number) if number else b""


def float64_field(field: int, number: float) -> bytes:
    return varint(field << 3 | FIXED64) + _DOUBLE.pack(number)


# Reading.

SESSION_START = "_hparams_/session_start_info"


class Malformed(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    number: int
    wire: int
    value: int
    octets: bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7
    raise Malformed("truncated number")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in order, without groups; raise `Malformed` at an error."""
    groups: list[int] = []
    for field in _tokens(data):
        if field.wire == GROUP:
            if len(groups) == _MAX_GROUPS:
                raise Malformed("groups are nested too deep")
            groups.append(field.number)
        elif field.wire == GROUP_END:
            if not groups or groups.pop() != field.number:
                raise Malformed("unexpected end of a group")
        elif not groups:
            yield field
    if groups:
        raise Malformed("missing end of a group")


def is_one_field(data: bytes) -> bool:
    """Return whether a message consists of a single field that is not a group."""
    return sum(1 for _ in _tokens(data)) == 1


def _fields_of(pieces: Iterable[bytes]) -> Iterator[Field]:
    return chain.from_iterable(map(fields, pieces))


def _tokens(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise Malformed("field without a number")
        if wire == VARINT:
            value, at = _varint(data, at)
            yield Field(number, wire, value, b"")
            continue
        if wire in (GROUP, GROUP_END):
            yield Field(number, wire, 0, b"")
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise Malformed("unknown wire type")
        if size > len(data) - at:
            raise Malformed("truncated field")
        octets = data[at : at + size]
        at += size
        yield Field(number, wire, 0 if wire == BYTES else int.from_bytes(octets, "little"), octets)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


class Metadata(NamedTuple):
    plugin: str = ""
    content: bytes = b""
    display_name: str = ""
    description: str = ""
    data_class: int = 0


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


def parse_metadata(*pieces: bytes) -> Metadata:
    result = Metadata()
    for f in _fields_of(pieces):
        match f.number, f.wire:
            case 1, 2:
                for inner in fields(f.octets):
                    match inner.number, inner.wire:
                        case 1, 2:
                            result = result._replace(plugin=_text(inner.octets))
                        case 2, 2:
                            result = result._replace(content=inner.octets)
            case 2, 2:
                result = result._replace(display_name=_text(f.octets))
            case 3, 2:
                result = result._replace(description=_text(f.octets))
            case 4, 0:
                result = result._replace(data_class=f.value)
    return result


class ElementType(NamedTuple):
    number: int
    field: int  # of the elements, unless they are in `tensor_content`
    code: str  # of the stored bits, for struct and numpy; bfloat16 is stored as its upper half
    wide: bool = False  # a value needs more than a 32-bit float


ELEMENT_TYPES = {
    "float32": ElementType(1, 5, "<f"),
    "float64": ElementType(2, 6, "<d", wide=True),
    "int32": ElementType(3, 7, "<i", wide=True),
    "uint8": ElementType(4, 7, "<B"),
    "int16": ElementType(5, 7, "<h"),
    "int8": ElementType(6, 7, "<b"),
    "complex64": ElementType(8, 9, "<F"),
    "int64": ElementType(9, 10, "<q", wide=True),
    "bool": ElementType(10, 11, "?"),
    "bfloat16": ElementType(14, 13, "<H"),
    "uint16": ElementType(17, 7, "<H"),
    "complex128": ElementType(18, 12, "<D"),
    "float16": ElementType(19, 13, "<e"),
    "uint32": ElementType(22, 16, "<I", wide=True),
    "uint64": ElementType(23, 17, "<Q", wide=True),
}
DT_STRING, DT_BFLOAT16 = 7, 14
_REAL_TYPES = {one.number: one for one in ELEMENT_TYPES.values() if one.code[-1] not in "FD"}


def _number(kind: ElementType, bits: int) -> float:
    if kind.code == "?":
        return float(bits != 0)
    width = struct.calcsize(kind.code)
    octets = (bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if kind.number == DT_BFLOAT16:
        return float(_FLOAT.unpack(b"\0\0" + octets)[0])
    return float(struct.unpack(kind.code, octets)[0])


class Tensor(NamedTuple):
    rank: int
    rows: int
    single: float | None  # the only element of a numeric tensor
    wide: bool


def _shape(data: bytes, known: bool) -> tuple[list[int], bool]:
    sizes = []
    for f in fields(data):
        if (f.number, f.wire) == (3, VARINT):
            known = not f.value
        if (f.number, f.wire) == (2, BYTES):
            size = 0
            for inner in fields(f.octets):
                if (inner.number, inner.wire) == (1, VARINT):
                    size = _signed(inner.value)
            sizes.append(size)
    return sizes, known


def _typed(pieces: Iterable[bytes], field: int) -> Iterator[int]:
    own = {5: FIXED32, 6: FIXED64}.get(field, VARINT)
    for f in _fields_of(pieces):
        if f.number != field:
            continue
        if f.wire == own:
            yield f.value
        elif f.wire == BYTES:
            at, width = 0, 4 if own == FIXED32 else 8
            while at < len(f.octets):
                if own == VARINT:
                    value, at = _varint(f.octets, at)
                elif len(f.octets) - at < width:
                    raise Malformed("truncated number")
                else:
                    value = int.from_bytes(f.octets[at : at + width], "little")
                    at += width
                yield value


def parse_tensor(*pieces: bytes) -> Tensor:
    code, content = 0, b""
    sizes: list[int] = []
    known = True
    for f in _fields_of(pieces):
        match f.number, f.wire:
            case 1, 0:
                code = f.value
            case 2, 2:
                more, known = _shape(f.octets, known)
                sizes += more
            case 4, 2:
                content = f.octets
    kind = _REAL_TYPES.get(code)
    tensor = Tensor(len(sizes), sizes[0] if sizes else 1, None, kind is not None and kind.wide)
    if kind is None or not known or any(size != 1 for size in sizes):
        return tensor
    if content:
        if len(content) != struct.calcsize(kind.code):
            return tensor
        return tensor._replace(single=_number(kind, int.from_bytes(content, "little")))
    stored = list(_typed(pieces, kind.field))
    if len(stored) > 1:
        return tensor
    # As in TensorFlow, an element that is not stored is zero.
    return tensor._replace(single=_number(kind, stored[0] if stored else 0))


class ParsedValue(NamedTuple):
    tag: bytes = b""
    origin: int = 0  # the number of the field with the value
    metadata: bytes | None = None
    simple: float = 0.0
    tensor: Tensor | None = None


def parse_value(data: bytes) -> ParsedValue:
    tag = node = b""
    what, content, metadata = 0, list[bytes](), list[bytes]()
    for f in fields(data):
        match f.number, f.wire:
            case 1, 2:
                tag = f.octets
            case 7, 2:
                node = f.octets
            case 9, 2:
                metadata.append(f.octets)
            case (2, 5) | (3, 2) | (4, 2) | (5, 2) | (6, 2) | (8, 2):
                if f.number != what:
                    what, content = f.number, []
                content.append(f.octets)
    # A histogram of the oldest kind is not read, but replaces another value.
    value = ParsedValue(tag or node, 0 if what == 3 else what)
    if metadata:
        parse_metadata(*metadata)
        value = value._replace(metadata=b"".join(metadata))
    if what == 2:
        return value._replace(simple=_FLOAT.unpack(content[-1])[0])
    if what == 8:
        return value._replace(tensor=parse_tensor(*content))
    return value


class Event(NamedTuple):
    """An Event; `what` is the number of the field that is set, or 0."""

    wall: float
    step: int
    what: int
    values: list[ParsedValue]
    tag: bytes  # of a tagged_run_metadata
    malformed: bool  # a value is; those before it are in `values`


def parse_event(data: bytes) -> Event:
    """Parse an Event; raise `Malformed` if its top-level fields cannot be read."""
    wall, step, what, pieces = 0.0, 0, 0, list[bytes]()
    for f in fields(data):
        match f.number, f.wire:
            case 1, 1:
                wall = _DOUBLE.unpack(f.octets)[0]
            case 2, 0:
                step = _signed(f.value)
            case ((3 | 4 | 5 | 6 | 7 | 8 | 9), 2):
                if f.number != what:
                    what, pieces = f.number, []
                pieces.append(f.octets)
    values: list[ParsedValue] = []
    tag = b""
    if what == 8:
        for f in _fields_of(pieces):
            if (f.number, f.wire) == (1, BYTES):
                tag = f.octets
    if what == 5:
        try:
            for f in _fields_of(pieces):
                if (f.number, f.wire) == (1, BYTES):
                    values.append(parse_value(f.octets))
        except Malformed:
            return Event(wall, step, what, values, tag, True)
    return Event(wall, step, what, values, tag, False)


HParam = bool | int | float | str


def parse_hparams(content: bytes) -> dict[str, HParam]:
    """Parse the hyperparameters of a run as TensorBoard's hparams plugin stores them.

    `content` is from the metadata of the tag `SESSION_START`. All numbers are floats there.
    """
    found: dict[str, HParam] = {}
    for session in fields(content):
        for entry in fields(session.octets) if session.number == 3 else ():
            if entry.number != 1:
                continue
            held = {one.number: one.octets for one in fields(entry.octets)}
            value = _hparam(held.get(2, b""))
            if value is not None:
                found[_text(held.get(1, b""))] = value
    return found


def _hparam(data: bytes) -> HParam | None:
    value: HParam | None = None
    for one in fields(data):
        if one.number == 2 and one.wire == FIXED64:
            number: float = _DOUBLE.unpack(one.octets)[0]
            value = int(number) if number.is_integer() and abs(number) < 1 << 53 else number
        elif one.number == 3 and one.wire == BYTES:
            value = _text(one.octets)
        elif one.number == 4 and one.wire == VARINT:
            value = bool(one.value)
    return value


# TensorBoard's protobufs. None of these modules is a public interface; `make compat` tests them
# with TensorBoard 2.15 and later.


class Protos(NamedTuple):
    event_pb2: Any
    summary_pb2: Any
    data_compat: Any
    dataclass_compat: Any
    tensor_util: Any
    NotAMessage: type[Exception]  # what parsing raises for bytes that are not a message


@cache
def load_protos() -> Protos:
    """Import the modules that read an event; the first call takes most of a second."""
    keep_tensorflow_out()
    from google.protobuf import message
    from tensorboard import data_compat, dataclass_compat
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.util import tensor_util

    not_a_message = message.DecodeError
    return Protos(event_pb2, summary_pb2, data_compat, dataclass_compat, tensor_util, not_a_message)


def keep_tensorflow_out() -> None:
    """Make `tensorboard.compat`, which looks for this module, treat TensorFlow as missing.

    Every import of TensorBoard comes after this call. Otherwise TensorBoard would import TensorFlow
    if it is installed, which takes several seconds and half a gigabyte.
    """
    require("tensorboard")
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, ModuleType(name))
    _check_versions()


@cache
def _check_versions() -> None:
    """Raise ImportError for versions that old TensorBoards allow but do not work with."""
    from google import protobuf
    from numpy import __version__ as numpy_version
    from tensorboard import version

    if _numbers(version.VERSION) >= (2, 17):
        return
    for package, found, newer in (
        ("numpy", numpy_version, (2,)),
        ("protobuf", protobuf.__version__, (5,)),
    ):
        if _numbers(found) >= newer:
            raise ImportError(
                f"TensorBoard {version.VERSION} does not work with {package} {found}: "
                "pip install 'tensorboard>=2.17', or 'numpy<2' 'protobuf<5'"
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


# Decoding. In whatever form a value was written, it is returned as a tensor with a plugin and a
# data class.

_NOT_WHAT_IT_SAYS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that TensorBoard's conversions raise for an invalid message."""
_UNKNOWN_TO_TENSORBOARD = {
    DT_BFLOAT16: ("half_val", "<u2"),
    22: ("uint32_val", "<u4"),
    23: ("uint64_val", "<u8"),
}
_MAX_REPEATS = 1 << 24  # a damaged shape must not repeat one element into all memory


class DecodeError(ValueError):
    """Bytes that are not an event, or an inconsistent tensor."""


class Value(NamedTuple):
    tag: str
    step: int
    wall_time: float
    plugin: str
    data_class: str
    """`scalar`, `tensor` or `blob_sequence`; empty if neither file nor plugin defines it."""
    metadata: bytes
    """The serialized `SummaryMetadata` of the tag, with its data class filled in."""
    tensor_proto: Any

    def __repr__(self) -> str:  # without the content, which may be megabytes
        shown = (f"{name}={one!r}" for name, one in zip(self._fields[:-1], self, strict=False))
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def tensor(self) -> npt.NDArray[Any]:
        """The value as a new array; text as bytes, bfloat16 as float32."""
        try:
            return _array(self.tensor_proto)
        except _NOT_WHAT_IT_SAYS as error:
            raise self._unreadable("tensor", str(error)) from error

    @property
    def blobs(self) -> list[bytes]:
        """The members of a blob sequence: images (after their size), audio clips or graphs."""
        if self.tensor_proto.dtype != DT_STRING:
            raise self._unreadable("blobs", f"its type {self.tensor_proto.dtype} is not text")
        return list(self.tensor.ravel())

    def _unreadable(self, what: str, reason: str) -> DecodeError:
        return DecodeError(f"cannot read the {what} of {self.tag!r} at step {self.step}: {reason}")


def decode(data: bytes, metadata: Mapping[str, bytes] | None = None) -> list[Value]:
    """Decode a serialized `Event` into its values, which may be none.

    `metadata` maps a tag to the serialized `SummaryMetadata` of its first value in the run, as
    written or from `Value.metadata`, because later values omit it.
    """
    import numpy as np

    tensorboard = load_protos()
    try:
        event = tensorboard.event_pb2.Event.FromString(data)
        first = _first_metadata(event, metadata or {})
        with np.errstate(over="ignore"):
            event = tensorboard.data_compat.migrate_event(event)
            events = tensorboard.dataclass_compat.migrate_event(event, first)
    except tensorboard.NotAMessage as error:
        raise DecodeError(f"not an event: {error}") from error
    except _NOT_WHAT_IT_SAYS as error:
        raise DecodeError(f"cannot migrate an event: {error}") from error
    return [value for each in events for value in _values(each, metadata or {})]


@lru_cache(maxsize=4096)
def migrated_metadata(metadata: bytes) -> bytes:
    """Fill in the data class in the `SummaryMetadata` of a plugin that TensorBoard knows."""
    tensorboard = load_protos()
    event = tensorboard.event_pb2.Event()
    event.summary.value.add().metadata.ParseFromString(metadata)
    (event,) = tensorboard.dataclass_compat.migrate_event(event, {})
    return bytes(event.summary.value[0].metadata.SerializeToString())


def _first_metadata(event: Any, metadata: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse the first metadata of the event's tags, in the form the migration expects.

    The migration handles values whose data class is missing, so a class that was filled in is
    removed again. Metadata without a plugin belongs to an old value, which implies its plugin.
    """
    summary_metadata = load_protos().summary_pb2.SummaryMetadata
    first = {}
    for value in event.summary.value:
        given = summary_metadata.FromString(metadata.get(value.tag, b""))
        if not given.plugin_data.plugin_name:
            continue
        bare = summary_metadata()
        bare.CopyFrom(given)
        bare.ClearField("data_class")
        filled_in = migrated_metadata(bare.SerializeToString()) == given.SerializeToString()
        first[value.tag] = bare if filled_in else given
    return first


def _values(event: Any, metadata: Mapping[str, bytes]) -> Iterator[Value]:
    summary_metadata = load_protos().summary_pb2.SummaryMetadata
    for value in event.summary.value:
        if not value.HasField("tensor"):
            continue
        own = value.metadata
        first = summary_metadata.FromString(migrated_metadata(metadata.get(value.tag, b"")))
        if first.plugin_data.plugin_name:
            own = first
        yield Value(
            tag=value.tag or value.node_name,
            step=event.step,
            wall_time=event.wall_time,
            plugin=own.plugin_data.plugin_name,
            data_class=DATA_CLASSES[own.data_class] if own.data_class in range(4) else "",
            metadata=own.SerializeToString(),
            tensor_proto=value.tensor,
        )


def _array(proto: Any) -> npt.NDArray[Any]:
    """Decode a `TensorProto`, text as bytes and bfloat16 as float32; ValueError for a bad shape."""
    import numpy as np

    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if not 0 <= count <= max(_MAX_REPEATS, proto.ByteSize()):
        raise ValueError(f"its shape is {shape}")
    if proto.dtype not in _UNKNOWN_TO_TENSORBOARD:
        elements: npt.NDArray[Any] = load_protos().tensor_util.make_ndarray(proto)
        return elements
    name, dtype = _UNKNOWN_TO_TENSORBOARD[proto.dtype]
    content = proto.tensor_content
    elements = np.frombuffer(content, dtype) if content else np.array(getattr(proto, name), dtype)
    if len(elements) == 1:
        elements = np.repeat(elements, count)
    if proto.dtype == DT_BFLOAT16:
        elements = (elements.astype("<u4") << 16).view("<f4")
    return elements.reshape(shape)
