"""Write ONNX graphs: their nodes are added one by one, and their weights stay outside, as numpy arrays.

The `onnx` package could write them too, but takes longer to import than a whole search may take. The part of the format
that a network needs is small: messages of protocol buffers, which are sequences of numbered fields. The numbers are
those of onnx.proto, and tests let the `onnx` package check the result.

Weights are not copied into the graph. `Graph.session` passes the arrays to onnxruntime, so that an array that is
memory-mapped from a file is read from there.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = float | int | str | Sequence[int]

OPSET, IR_VERSION = 17, 8
_CONTRIBUTED = "com.microsoft"  # the operators that only onnxruntime has
_ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}
_INLINE = 1024  # arrays up to this many bytes are written into the graph, because onnxruntime computes shapes from them


class Graph:
    """A graph under construction. Its methods add nodes and return the names of their results.

    >>> graph = Graph()
    >>> graph.input("x", "float32", ["batch", 2])
    'x'
    >>> graph.output("y", graph.add("Mul", "x", graph.constant(np.array([2, 3], np.float32))), ["batch", 2])
    >>> graph.session().run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist()
    [[2.0, 3.0]]
    """

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._count = 0

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        """Add an input, and return its name. A name in `shape` is an axis of any length.

        Args:
            name: The name of the input.
            dtype: The type of its numbers, as numpy names it.
            shape: The length of each axis, or its name.
        """
        self._inputs.append(_port(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str]) -> None:
        """Make a value of type float32 an output of the graph.

        Args:
            name: The name of the output.
            value: The name of the value.
            shape: The length of each axis, or its name.
        """
        self._nodes.append(_node("Identity", [value], [name], {}))
        self._outputs.append(_port(name, "float32", shape))

    def constant(self, array: NDArray[Any], name: str = "") -> str:
        """Add an array, and return its name. Arrays of the same name are one."""
        name = name or self._new("constant")
        self._constants[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        """Add whole numbers, such as a shape, and return their name."""
        return self.constant(np.array(numbers, np.int64), f"ints_{'_'.join(map(str, numbers))}")

    def add(self, operator: str, *inputs: str, **attributes: Value) -> str:
        """Add a node with one result, and return the name of the result.

        Args:
            operator: The name of the operator, after "com.microsoft::" if it is one of onnxruntime's own.
            inputs: The names of its inputs. "" is an optional input that is left out.
            attributes: Its attributes.
        """
        return self.add_many(operator, 1, *inputs, **attributes)[0]

    def add_many(self, operator: str, results: int, *inputs: str, **attributes: Value) -> list[str]:
        """Add a node with several results, and return their names.

        Args:
            operator: As for `add`.
            results: The number of results.
            inputs: As for `add`.
            attributes: As for `add`.
        """
        names = [self._new(operator) for _ in range(results)]
        self._nodes.append(_node(operator, inputs, names, attributes))
        return names

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    # ------------------------------------------------------------ results

    def model(self, *, weights: bool = False) -> bytes:
        """Return the graph as the bytes of an ONNX file, with or without the weights that `session` would pass."""
        tensors = (
            _tensor(name, array, inline=weights or array.nbytes <= _INLINE) for name, array in self._constants.items()
        )
        graph = b"".join(
            [
                _join(1, self._nodes),
                _text(2, "midreel"),
                _join(5, tensors),
                _join(11, self._inputs),
                _join(12, self._outputs),
            ]
        )
        opsets = [_text(1, "") + _int(2, OPSET), _text(1, _CONTRIBUTED) + _int(2, 1)]
        return _int(1, IR_VERSION) + _text(2, "midreel") + _field(7, graph) + _join(8, opsets)

    def session(self, threads: int = 0) -> Any:
        """Return an onnxruntime session that computes the graph on the CPU.

        Args:
            threads: The number of threads. 0: one for each core.
        """
        import onnxruntime  # type: ignore[import-untyped]

        options = session_options(threads)
        passed = {name: array for name, array in self._constants.items() if array.nbytes > _INLINE}
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for array in passed.values()]
        options.add_external_initializers(list(passed), values)
        return onnxruntime.InferenceSession(self.model(), options, providers=["CPUExecutionProvider"])


def session_options(threads: int = 0) -> Any:
    """Return options of onnxruntime. Waiting threads do not spin, because decoders and a server need the cores.

    Args:
        threads: The number of threads. 0: one for each core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


# ---------------------------------------------------------------- messages


def _node(operator: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Mapping[str, Value]) -> bytes:
    domain, _, name = operator.rpartition("::")
    made = [*(_text(1, each) for each in inputs), *(_text(2, each) for each in outputs), _text(4, name)]
    made += [_field(5, _attribute(key, value)) for key, value in attributes.items()]
    return b"".join(made) + (_text(7, domain) if domain else b"")


def _attribute(name: str, value: Value) -> bytes:
    match value:
        case float():
            return _text(1, name) + b"\x15" + struct.pack("<f", value) + _int(20, 1)
        case int():
            return _text(1, name) + _int(3, value) + _int(20, 2)
        case str():
            return _text(1, name) + _text(4, value) + _int(20, 3)
    return _text(1, name) + b"".join(_int(8, each) for each in value) + _int(20, 7)


def _port(name: str, dtype: str, shape: Sequence[int | str]) -> bytes:
    """Return the name, type and shape of an input or output."""
    axes = [_text(2, axis) if isinstance(axis, str) else _int(1, axis) for axis in shape]
    return _text(1, name) + _field(2, _field(1, _int(1, _ELEMENT_TYPES[dtype]) + _field(2, _join(1, axes))))


def _tensor(name: str, array: NDArray[Any], *, inline: bool) -> bytes:
    described = b"".join(_int(1, axis) for axis in array.shape)
    described += _int(2, _ELEMENT_TYPES[array.dtype.name]) + _text(8, name)
    if inline:
        return described + _field(9, array.tobytes())
    return described + _field(13, _text(1, "location") + _text(2, "passed by midreel")) + _int(14, 1)


def _join(number: int, messages: Iterable[bytes]) -> bytes:
    return b"".join(_field(number, message) for message in messages)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first. All bytes but the last have the highest bit set."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
