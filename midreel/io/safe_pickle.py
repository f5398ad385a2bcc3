"""Read pickles without running the code in them.

A pickle is a program: it names functions and calls them, so a hostile pickle can run anything. This module interprets
the instructions of a pickle, but imports none of the names in it. So there is nothing that the pickle could call.

- Numbers, strings, bytes, lists, tuples and dictionaries are built as usual. Sets become lists.
- Tensors and arrays become descriptions (`StoredTensor`, `StoredArray`). They are checked against the size of the file
  before they are read.
- Every other object becomes an `Inert`: a dictionary with the name of its class.

Limits on instructions, sizes and copies keep a small file from using up memory or time.
"""

import codecs
import math
import mmap
import pickletools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from midreel.errors import BadModel

if TYPE_CHECKING:
    import torch

MAX_INSTRUCTIONS = 4 << 20  # released models have fewer than 100,000
MAX_INDEX = 1 << 60  # of sizes and integer keys; up to here, different integers have different hashes
MAX_AXES = 8  # of tensors; also the longest tuple as a dictionary key
MAX_NAME = 200
# Calls may copy their arguments, so their total size is limited: to 4 times the size of the file (torch and numpy pass
# their data twice), plus 64 MB for small values that are passed often. An item of a list or dictionary counts 64 bytes.
MAX_COPIES, SPARE_COPIES, ITEM_BYTES = 4, 64 << 20, 64


class Number(NamedTuple):
    """A type of numbers: its name, which torch and numpy share (numpy has no bfloat16), and its size in bytes."""

    name: str
    itemsize: int


NUMBER_OF_STORAGE = {
    "DoubleStorage": Number("float64", 8),
    "FloatStorage": Number("float32", 4),
    "HalfStorage": Number("float16", 2),
    "BFloat16Storage": Number("bfloat16", 2),
    "LongStorage": Number("int64", 8),
    "IntStorage": Number("int32", 4),
    "ShortStorage": Number("int16", 2),
    "CharStorage": Number("int8", 1),
    "ByteStorage": Number("uint8", 1),
    "BoolStorage": Number("bool", 1),
}
NUMPY_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|[SU][0-9]{1,6})")


class Inert(dict[Any, Any]):
    """An object of a class that is not trusted: a dictionary of its attributes and items.

    Attributes:
        kind: The full name of the class or function that the pickle names.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind


class Refused(Exception):
    """The file is damaged or contains something unexpected. The message becomes part of a BadModel."""


# ---------------------------------------------------------------- contents of the file


@dataclass(eq=False, kw_only=True)
class Storage:
    """The numbers of one or more tensors.

    Attributes:
        memory: The mapped file.
        kind: The type of the numbers.
        num: The number of numbers, according to the pickle.
        start: The position in the file, or -1 if it is not known yet.
        num_bytes: The size in the file, or -1 if it is not known yet.
    """

    memory: mmap.mmap
    kind: Number
    num: int
    start: int = -1
    num_bytes: int = -1


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredTensor:
    """A tensor that has not been read yet: a view of a storage."""

    shape: tuple[int, ...]
    _stride: tuple[int, ...]
    _offset: int
    _storage: Storage

    @property
    def dtype(self) -> "torch.dtype":
        """The type of the numbers."""
        import torch

        dtype: torch.dtype = getattr(torch, self._storage.kind.name)
        return dtype

    @property
    def _reach(self) -> int:
        """The distance in the storage from the first to behind the last number."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self._stride, strict=True))

    def check(self) -> None:
        """Raise BadModel unless the file contains all numbers of the tensor."""
        # A view that repeats numbers could be larger than any memory. Weights are never such views.
        num, width = math.prod(self.shape), self._storage.kind.itemsize
        if num and (num > self._reach or (self._offset + self._reach) * width > self._storage.num_bytes):
            raise BadModel(
                f"a tensor of shape {self.shape} has {max(self._storage.num_bytes, 0)} bytes, expected at least "
                f"{max(num, self._offset + self._reach) * width}. The file is damaged or malicious: do not use it."
            )

    def read(self) -> "torch.Tensor":
        """Return a contiguous copy of the tensor on the CPU.

        Raises:
            BadModel: The file does not contain all numbers.
        """
        import torch

        self.check()
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(self._bytes(), dtype=self.dtype)
        return flat.as_strided(self.shape, self._stride).clone(memory_format=torch.contiguous_format)

    def array(self) -> NDArray[Any]:
        """Return a contiguous copy as an array of numpy, without torch.

        Raises:
            BadModel: The file does not contain all numbers, or numpy does not have their type.
        """
        self.check()
        kind = self._storage.kind
        if kind.name == "bfloat16":
            raise BadModel("a tensor is bfloat16, which numpy does not have, expected float32. Read it with torch.")
        if 0 in self.shape:
            return np.empty(self.shape, kind.name)
        flat = np.frombuffer(self._bytes(), kind.name)
        steps = [step * kind.itemsize for step in self._stride]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, self.shape, steps))

    def _bytes(self) -> bytearray:
        """Return the part of the file from the first to the last number."""
        width = self._storage.kind.itemsize
        start = self._storage.start + self._offset * width
        return bytearray(self._storage.memory[start : start + self._reach * width])


@dataclass(eq=False, kw_only=True)
class StoredArray:
    """A numpy array that has not been read yet."""

    _state: Any = None

    def read(self) -> NDArray[Any]:
        """Return the array, read-only.

        Raises:
            BadModel: It is damaged, or an array of objects.
        """
        try:
            _, shape, dtype, fortran, data = self._state
            return np.frombuffer(_bytes(data), dtype.real()).reshape(shape, order="F" if fortran else "C")
        except (Refused, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise BadModel(f"a numpy array cannot be read ({error}), expected numbers or text.") from error


@dataclass(eq=False, kw_only=True)
class _Dtype:
    """A numpy dtype: its code, and its byte order, which the pickle sets later."""

    code: str
    order: Literal["<", ">", "="] = "="

    def real(self) -> np.dtype[Any]:
        """Return the numpy dtype. Raise Refused if it is not a type of numbers or text."""
        if not NUMPY_DTYPE.fullmatch(self.code):
            raise Refused(f"it has a numpy dtype {self.code[:40]!r}")
        return np.dtype(self.code).newbyteorder(self.order)


# ---------------------------------------------------------------- functions that the pickle may name


@dataclass(frozen=True, eq=False)
class _Name:
    """A class or function that the pickle names.

    Attributes:
        kind: Its full name.
        call: Our replacement for it. None if its calls return an `Inert`.
        numbers: The type of the numbers if it is a storage class.
    """

    kind: str
    call: Callable[..., Any] | None = None
    numbers: Number | None = None


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> StoredTensor:
    """Describe a tensor. `rest` is requires_grad, hooks and, since torch 2, the conjugate and negative bits."""
    sizes, strides = _sizes(size), _sizes(stride)
    if not isinstance(storage, Storage) or len(sizes) != len(strides) or len(sizes) > MAX_AXES:
        raise Refused("it has a tensor that is not a view of numbers")
    if len(rest) > 2 and rest[2]:
        raise Refused("it has a tensor with conjugate or negative bits")
    return StoredTensor(shape=sizes, _stride=strides, _offset=_sizes((offset,))[0], _storage=storage)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(function: Any, _: Any, arguments: Any, *__: Any) -> Any:
    if not isinstance(function, _Name) or function.call not in (_rebuild_tensor, _rebuild_parameter):
        raise Refused("it has a tensor of an unknown subclass")
    return function.call(*arguments)


def _encode(text: Any = "", encoding: Any = "utf-8") -> bytes:
    """Return bytes as old protocols write them: encode(text, "latin1"), or bytes() if there are none."""
    if not isinstance(text, str) or encoding not in ("latin1", "utf-8"):
        raise Refused("it has bytes in an unknown encoding")
    return text.encode(encoding)


def _numpy_dtype(code: Any, *_: Any) -> _Dtype:
    if not isinstance(code, str):
        raise Refused("it has a numpy dtype without a name")
    return _Dtype(code=code)


def _numpy_scalar(dtype: Any, data: Any = b"") -> Any:
    if not isinstance(dtype, _Dtype) or len(_bytes(data)) != dtype.real().itemsize:
        raise Refused("it has a numpy number of the wrong size")
    return np.frombuffer(_bytes(data), dtype.real(), count=1)[0].item()


def _bytes(data: Any) -> bytes:
    """Return bytes. Strings of Python 2 may be bytes or text, and were read as text."""
    if not isinstance(data, bytes | bytearray | str):
        raise Refused(f"it has a {type(data).__name__} in place of bytes")
    return data.encode("latin1") if isinstance(data, str) else bytes(data)


def _numpy_array(*_: Any) -> StoredArray:
    return StoredArray()


def _numpy_array_of(data: Any, dtype: Any, shape: Any, order: Any) -> StoredArray:
    """Describe an array as protocol 5 writes it."""
    return StoredArray(_state=(None, shape, dtype, order == "F", data))


def _ordered_dict(pairs: Any = ()) -> Inert:
    found = Inert("collections.OrderedDict")
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        key, value = pair
        _set_items(found, [key, value])
    return found


KNOWN: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "collections.OrderedDict": _ordered_dict,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _encode,
    "numpy.dtype": _numpy_dtype,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy._core.multiarray.scalar": _numpy_scalar,
    "numpy.core.multiarray._reconstruct": _numpy_array,
    "numpy._core.multiarray._reconstruct": _numpy_array,
    "numpy.core.numeric._frombuffer": _numpy_array_of,
    "numpy._core.numeric._frombuffer": _numpy_array_of,
}
SILENT = {"numpy.ndarray"}  # an argument of `_reconstruct`, never called


# ---------------------------------------------------------------- the interpreter

MARK = object()
INSTRUCTIONS = {instruction.code: instruction for instruction in pickletools.opcodes}
PLAIN = {
    *(
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "FLOAT",
        "BINFLOAT",
    ),  # not LONG4, which is for thousands of digits
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(kw_only=True)
class Machine:
    """An interpreter for the pickle instructions that only build data.

    Attributes:
        storage: Returns the storage for a key, a type and a number of numbers.
        num_bytes: The size of the file.
        strangers: The names of unknown classes and functions, in order of appearance.
    """

    storage: Callable[[str, Number, int], Storage]
    num_bytes: int
    strangers: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._budget = MAX_COPIES * self.num_bytes + SPARE_COPIES

    def run(self, stream: Any) -> Any:
        """Return the object that the next pickle in a stream describes.

        Raises:
            Refused: The pickle is damaged, or has instructions that are not allowed.
        """
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        try:
            for number, (name, argument) in enumerate(_instructions(stream)):
                if number > MAX_INSTRUCTIONS:
                    raise Refused(f"its pickle has more than {MAX_INSTRUCTIONS:,} instructions")
                if name == "STOP":
                    (value,) = stack
                    return value
                self._step(name, argument, stack, memo)
        except Refused:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, struct.error) as error:
            raise Refused(f"its pickle is damaged ({type(error).__name__}: {error})") from error
        raise Refused("its pickle is truncated")

    def _step(self, name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
        """Execute one instruction."""
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(MARK)
            case "POP":
                stack.pop()
            case "POP_MARK":
                _pop_mark(stack)
            case _ if name in PLAIN:
                stack.append(argument)
            case _ if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case _ if name in TUPLES:
                stack.append(tuple(_without_marks([stack.pop() for _ in range(TUPLES[name])][::-1])))
            case "TUPLE" | "FROZENSET":
                stack.append(tuple(_pop_mark(stack)))
            case "LIST":
                stack.append(_pop_mark(stack))
            case "EMPTY_LIST" | "EMPTY_SET":  # a set would hash its items
                stack.append([])
            case "APPEND":
                _append(stack, [stack.pop()])
            case "APPENDS" | "ADDITEMS":
                _append(stack, _pop_mark(stack))
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                stack.append(_set_items({}, _pop_mark(stack)))
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            case "SETITEMS":
                items = _pop_mark(stack)
                _set_items(stack[-1], items)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(self._named(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                if not isinstance(attribute, str) or not isinstance(module, str):
                    raise Refused("it has a function name that is not text")
                stack.append(self._named(f"{module[:MAX_NAME]}.{attribute[:MAX_NAME]}"))
            case "REDUCE" | "NEWOBJ":
                arguments = stack.pop()
                stack[-1] = _call(stack[-1], self._charge(arguments))
            case "NEWOBJ_EX":
                _, arguments = stack.pop(), stack.pop()
                stack[-1] = _call(stack[-1], self._charge(arguments))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], self._charge(state))
            case "BINPERSID":
                stack.append(self._persistent(stack.pop()))
            case _:
                raise Refused(f"its pickle has the instruction {name}, which torch.save never writes")

    def _charge(self, given: Any) -> Any:
        """Charge the arguments of a call to the budget, because the call may copy them, and return them."""
        values = (given, *given) if isinstance(given, tuple) else (given,)
        self._budget -= sum(len(value) for value in values if isinstance(value, str | bytes | bytearray))
        self._budget -= sum(len(value) * ITEM_BYTES for value in values if isinstance(value, list | tuple | dict))
        if self._budget < 0:
            raise Refused("its pickle copies much more data than the file contains")
        return given

    def _named(self, kind: str) -> _Name:
        """Return what stands for a name in the pickle. Nothing is imported."""
        module, _, attribute = kind.rpartition(".")
        if kind in KNOWN:
            return _Name(kind, KNOWN[kind])
        if module in ("torch", "torch.cuda") and attribute in NUMBER_OF_STORAGE:
            return _Name(kind, numbers=NUMBER_OF_STORAGE[attribute])
        kind = kind if len(kind) < MAX_NAME and kind.isprintable() else "(a name that cannot be printed)"
        if kind not in SILENT:
            self.strangers[kind] = None
        return _Name(kind)

    def _persistent(self, saved: Any) -> Any:
        """Return an object outside of the pickle: ("storage", class, key, device, number of numbers, view)."""
        match saved:
            case ("module", _Name() as name, *_):  # a whole module was saved, with its source
                return name
            case ("storage", _Name(numbers=Number() as numbers), str() as key, str(), int() as num, *rest):
                if any(view is not None for view in rest):
                    raise Refused("it has a view of a storage, as written by torch before 0.4")
                return self.storage(key, numbers, _sizes((num,))[0])
        raise Refused("it has a persistent id that is not a storage")


def _instructions(stream: Any) -> Iterator[tuple[str, Any]]:
    """Do what pickletools.genops does, but allow any bytes in the quoted strings of Python 2, not only ASCII."""
    while code := stream.read(1):
        instruction = INSTRUCTIONS.get(code.decode("latin1"))
        if instruction is None:
            raise ValueError(f"unknown instruction {code!r}")
        if instruction.name == "STRING":
            yield instruction.name, _unquoted(stream.readline())
        else:
            yield instruction.name, None if instruction.arg is None else instruction.arg.reader(stream)


def _unquoted(line: bytes) -> str:
    quoted = line.removesuffix(b"\n")
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
        raise Refused("it has a string without quotes")
    return codecs.escape_decode(quoted[1:-1])[0].decode("latin1")


def _without_marks(items: list[Any]) -> list[Any]:
    """Return the items. Raise Refused if one of them is a mark."""
    if any(item is MARK for item in items):
        raise Refused("its pickle is damaged (misplaced mark)")
    return items


def _pop_mark(stack: list[Any]) -> list[Any]:
    """Remove the items down to the last mark, and return them."""
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def _append(stack: list[Any], items: list[Any]) -> None:
    if isinstance(stack[-1], list):
        stack[-1].extend(_without_marks(items))
    elif not isinstance(stack[-1], Inert):
        raise Refused("it appends to something that is not a list")


def _set_items(target: Any, items: Sequence[Any]) -> Any:
    if not isinstance(target, dict) or len(items) % 2:
        raise Refused("it sets items of something that is not a dictionary")
    for key, value in zip(items[0::2], items[1::2], strict=True):
        if isinstance(key, tuple) and len(key) > MAX_AXES:  # hashing it takes time on each access
            raise Refused(f"it has a dictionary key of {len(key):,} parts")
        if not all(part is None or isinstance(part, str | bytes | int | float) for part in _flat(key)):
            raise Refused(f"it has a dictionary key of type {type(key).__name__}")
        if any(isinstance(part, int) and abs(part) > MAX_INDEX for part in _flat(key)):
            raise Refused("it has a dictionary key that is a huge number")
        target[key] = value
    return target


def _flat(key: Any) -> Iterator[Any]:
    yield from key if isinstance(key, tuple) else (key,)


def _call(called: Any, arguments: Any) -> Any:
    if isinstance(called, Inert):  # the result of an unknown function is called
        return called
    if not isinstance(called, _Name):
        raise Refused(f"it calls a {type(called).__name__}")
    if called.call is None:
        return Inert(called.kind)
    if not isinstance(arguments, tuple):
        raise Refused(f"it calls {called.kind} without arguments")
    return called.call(*arguments)


def _build(target: Any, state: Any) -> None:
    """Set the attributes of an object. Those of ordered dictionaries and tensors are dropped."""
    match target, state:
        case StoredArray(), _:
            target._state = state
        case _Dtype(), (_, "<" | ">" as order, *_):
            target.order = order
        case _Dtype(), _:
            pass
        case Inert(kind="collections.OrderedDict"), _:
            pass
        case Inert(), _:
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    target.update(part)
        case StoredTensor(), _:
            pass
        case _:
            raise Refused(f"it sets attributes of a {type(target).__name__}")


def _sizes(values: Any) -> tuple[int, ...]:
    """Return sizes, strides or offsets. Raise Refused unless all are integers in a sane range."""
    if not isinstance(values, tuple | list) or not all(type(v) is int and 0 <= v <= 8 * MAX_INDEX for v in values):
        raise Refused("it has a tensor with impossible sizes")
    return tuple(values)
