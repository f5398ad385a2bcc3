"""Data in a pickle is loaded, and code in it does not run."""

import argparse
import builtins
import collections
import contextlib
import io
import os
import pickle
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadModel
from midreel.io import safe_pickle
from midreel.io.safe_pickle import Inert, StoredArray, StoredTensor
from midreel.io.torch_files import load
from tests.pickles import FORMATS, FOUR, as_legacy, as_zip, both, raw_global, raw_tensor, save, storage, text

# ---------------------------------------------------------------- data


@FORMATS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_kinds_of_data_are_loaded(tmp_path: Path, is_zip: bool, protocol: int) -> None:
    value = {
        "numbers": [0, 1, 255, 256, 65536, -7, 2**40, -(2**70), 1.5, float("inf")],
        "texts": ("", "ä", "x" * 300, b"bytes", b""),
        "constants": [None, True, False],
        "nested": {"a": [{}, (), [], ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))]},
        (1, "pair"): 3,
        7: {"again": 1},
    }
    value["twice"] = [value["nested"], value["nested"]]
    found = load(save(value, tmp_path / "file", is_zip, protocol))
    assert found.value == value
    assert found.value["twice"][0] is found.value["twice"][1]
    assert found.strangers == ()


@FORMATS
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_of_all_types_and_layouts(tmp_path: Path, is_zip: bool, dtype: torch.dtype) -> None:
    base = (torch.randn(6, 8) * 9).to(dtype)
    tensors = {
        "whole": base,
        "transposed": base.T,
        "part": base[2:5, 1::3],
        "scalar": base[3, 3],
        "empty": base[:0],
        "permuted": (torch.randn(2, 3, 4) * 9).to(dtype).permute(2, 0, 1),
        "backwards in memory": torch.flip(base, (0,)),
    }
    found = load(save(tensors, tmp_path / "file", is_zip)).value
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape
        assert found[name].dtype == dtype
        assert found[name].read().equal(tensor)
        assert found[name].read().is_contiguous()
    found["whole"].read().zero_()
    assert found["whole"].read().equal(base)  # the file is unchanged


@FORMATS
def test_a_training_checkpoint(tmp_path: Path, is_zip: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimiser.step()
    value = {"state_dict": model.state_dict(), "optimizer": optimiser.state_dict(), "parameter": model[0].weight}
    found = load(save(value, tmp_path / "file", is_zip)).value
    assert list(found["state_dict"]) == list(model.state_dict())
    for name, weight in model.state_dict().items():
        assert found["state_dict"][name].read().equal(weight)
    assert found["parameter"].read().equal(model[0].weight)
    assert found["optimizer"]["state"][0]["exp_avg"].read().equal(optimiser.state_dict()["state"][0]["exp_avg"])


@FORMATS
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_numpy_numbers_and_arrays(tmp_path: Path, is_zip: bool, protocol: int) -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(6, dtype=">i4"), np.asfortranarray(np.eye(2, 3)), np.array("abc")]
    scalars = [np.float64(23.9), np.float32(0.5), np.int64(7), np.bool_(True), np.str_("text")]
    found = load(save({"scalars": scalars, "arrays": arrays}, tmp_path / "file", is_zip, protocol))
    assert found.value["scalars"] == [23.9, 0.5, 7, True, "text"]
    for expected, array in zip(arrays, found.value["arrays"], strict=True):
        assert isinstance(array, StoredArray)
        assert array.read().tolist() == expected.tolist()
    assert found.strangers == ()


@pytest.fixture
def gone() -> type:
    """A class of a module that no longer exists when the file is read."""
    module = types.ModuleType("Opts.optimization")
    kind = type("WarmupLinearSchedule", (), {"__module__": "Opts.optimization", "get_lr": lambda self: 1.0})
    module.WarmupLinearSchedule = kind  # type: ignore[attr-defined]
    sys.modules["Opts"], sys.modules["Opts.optimization"] = types.ModuleType("Opts"), module
    return kind


def forget() -> None:
    """Remove the module of `gone`."""
    del sys.modules["Opts"], sys.modules["Opts.optimization"]


@FORMATS
def test_objects_of_unknown_classes_are_inert(tmp_path: Path, is_zip: bool, gone: type) -> None:
    schedule = gone()
    schedule.warmup, schedule.t_total = 0.01, 1200
    value = {"groups": [{"schedule": schedule, "lr": 2e-4}], "arguments": argparse.Namespace(drop=0.2, name="x")}
    path = save(value, tmp_path / "file", is_zip)
    forget()
    found = load(path)
    schedule = found.value["groups"][0]["schedule"]
    assert isinstance(schedule, Inert)
    assert schedule.kind == "Opts.optimization.WarmupLinearSchedule"
    assert schedule == {"warmup": 0.01, "t_total": 1200}
    assert found.value["arguments"] == {"drop": 0.2, "name": "x"}
    assert found.strangers == ("Opts.optimization.WarmupLinearSchedule", "argparse.Namespace")


class EasyDict(dict):  # type: ignore[type-arg]
    """A dictionary whose items are attributes, as in the package of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self[name] = value


@FORMATS
def test_a_dictionary_with_attributes(tmp_path: Path, is_zip: bool) -> None:
    config = EasyDict()
    config.drop, config.n_heads = 0.2, 4
    found = load(save({"model_cfg": config}, tmp_path / "file", is_zip)).value["model_cfg"]
    assert isinstance(found, Inert)
    assert found == {"drop": 0.2, "n_heads": 4}


def test_sets_and_other_containers(tmp_path: Path) -> None:
    value = {"set": {1}, "default": collections.defaultdict(int, {"a": 1}), "ordered": collections.OrderedDict(b=2)}
    found = load(save(value, tmp_path / "old", protocol=2)).value
    assert found["default"] == {"a": 1}
    assert found["ordered"] == {"b": 2}
    assert load(save(value, tmp_path / "new", protocol=4)).value["set"] == [1]


# ---------------------------------------------------------------- attacks


class Call:
    """An object that is pickled as a call of a function. A normal unpickler runs the function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call

    def __call__(self) -> None:
        """Make it callable, so that it can be called in turn."""


def attacks(canary: Path) -> dict[str, bytes]:
    """Return pickles that would create the file `canary`."""
    command = f"touch {canary}"
    code = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    calls = {
        "os.system": Call(os.system, command),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "a chain": Call(eval, Call(str, code)),
        "getattr of a module": Call(Call(getattr, Call(__import__, "os"), "system"), command),  # type: ignore[arg-type]
        "in a list in a dictionary": {"state_dict": {"weight": [Call(os.system, command)]}},
        "in the state of an object": {"config": Call(collections.OrderedDict, [("a", Call(os.system, command))])},
        "pickle in a pickle": Call(pickle.loads, pickle.dumps(Call(os.system, command))),
        "torch.load": Call(torch.load, io.BytesIO),
        "torch's own loader": Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, command))),
    }
    programs = {f"{name}, protocol {p}": pickle.dumps(v, p) for name, v in calls.items() for p in (0, 2, 4)}
    run = text(command) + b"\x85R."
    programs |= {
        "a dotted name": b"\x80\x04" + text("os") + text("path.os.system") + b"\x93" + run,
        "a dotted name behind a trusted one": b"\x80\x04" + text("torch") + text("_utils.os.system") + b"\x93" + run,
        "a trusted module's import": raw_global("torch._utils", "os") + text("system") + b"\x86R.",
        "a trusted function's globals": raw_global("torch._utils", "_rebuild_tensor_v2.__globals__") + b".",
        "an old instance": b"(" + text(command) + b"ios\nsystem\n.",
        "an old object": b"(" + raw_global("os", "system") + text(command) + b"o.",
        "a new object": raw_global("os", "system") + text(command) + b"\x85\x81.",
        "a new object with keywords": b"\x80\x04" + raw_global("os", "system") + text(command) + b"\x85}\x92.",
        "state that is set": raw_global("os", "system") + b")R" + text(command) + b"b.",
        "a class that is replaced": raw_global("collections", "OrderedDict")
        + b")R}"
        + text("__class__")
        + raw_global("os", "system")
        + b"sb.",
        "a function that is changed": raw_global("torch._utils", "_rebuild_tensor_v2")
        + b"N}"
        + text("__code__")
        + b"Ns\x86b.",
        "a registered extension": b"\x80\x02\x82\x01.",
        "a name for something outside": b"P" + command.encode() + b"\n.",
        "something outside that is text": text(command) + b"Q.",
        "a function from outside": text("module") + raw_global("os", "system") + b"NN(" + b"tQ" + run,
        "a module from outside": b"(" + text("module") + raw_global("os", "system") + b"NNtQ" + run,
        "a storage class that is none": b"("
        + text("storage")
        + raw_global("os", "system")
        + text(command)
        + text("cpu")
        + b"K\x01tQ.",
        "a number of numpy": raw_global("numpy.core.multiarray", "scalar")
        + raw_global("numpy", "dtype")
        + text("O8")
        + b"\x85R"
        + pickle.dumps(Call(os.system, command), 2)[2:-1]
        + b"\x86R.",
        "an array of objects": raw_global("numpy.core.multiarray", "_reconstruct")
        + raw_global("numpy", "ndarray")
        + b"K\x00\x85"
        + text("b")
        + b"\x87R(K\x01K\x01\x85"
        + raw_global("numpy", "dtype")
        + text("O")
        + b"\x85R\x89]"
        + pickle.dumps(Call(os.system, command), 2)[2:-1]
        + b"atb.",
        "an encoding": raw_global("_codecs", "encode") + text(command) + text("rot13") + b"\x86R.",
        "a key that calls": b"}" + pickle.dumps(Call(os.system, command), 2)[2:-1] + b"K\x01s.",
        "a stranger called again": raw_global("builtins", "getattr")
        + raw_global("os", "system")
        + text("__call__")
        + b"\x86R"
        + text(command)
        + b"\x85R.",
        "a tensor of a kind of its own": raw_global("torch._tensor", "_rebuild_from_type_v2")
        + b"("
        + raw_global("os", "system")
        + b"N"
        + text(command)
        + b"\x85}tR.",
    }
    return programs


NAMES_OF_ATTACKS = list(attacks(Path("canary")))


@pytest.mark.parametrize("name", NAMES_OF_ATTACKS)
def test_an_attack_does_not_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    pickled = attacks(canary)[name]
    imported: list[str] = []
    original = builtins.__import__
    monkeypatch.setattr(
        builtins, "__import__", lambda what, *rest, **more: imported.append(what) or original(what, *rest, **more)
    )
    for path in both(tmp_path, pickled):
        expect_only_data(value_or_message(path))
    assert not canary.exists()
    assert "os" not in imported


def value_or_message(path: Path) -> Any:
    try:
        return load(path).value
    except BadModel as error:
        return str(error)


def expect_only_data(value: Any) -> None:
    """Assert that a value contains data only, nothing callable or unknown."""
    if isinstance(value, dict):
        assert type(value) in (dict, Inert)
        for key, each in value.items():
            assert isinstance(key, str | int | float | bytes | tuple | None)
            expect_only_data(each)
    elif isinstance(value, list | tuple):
        for each in value:
            expect_only_data(each)
    else:
        kinds = (str, bytes, bytearray, int, float, StoredTensor, StoredArray, safe_pickle._Name, safe_pickle._Dtype)
        assert value is None or isinstance(value, kinds)


def test_the_attacks_are_real(tmp_path: Path) -> None:
    """The standard library runs them."""
    for name in ("os.system, protocol 2", "a chain, protocol 4", "getattr of a module, protocol 2", "an old instance"):
        canary = tmp_path / name
        with pytest.MonkeyPatch.context():
            pickle.loads(attacks(Path(str(canary).replace(" ", "_")))[name])
        assert Path(str(canary).replace(" ", "_")).exists()


# ---------------------------------------------------------------- huge and damaged contents


def test_a_tensor_by_hand(tmp_path: Path) -> None:
    found = load(as_zip(tmp_path / "zip", raw_tensor(4, 1, (3,), (1,)), {"0": FOUR})).value
    assert found.read().tolist() == [2, 3, 4]
    on_a_gpu = raw_tensor(4, 0, (2,), (2,)).replace(storage("0", 4), storage("0", 4, "cuda:7"))
    found = load(as_zip(tmp_path / "zip", on_a_gpu, {"0": FOUR})).value.read()
    assert (found.tolist(), found.device.type) == ([1, 3], "cpu")
    legacy = as_legacy(tmp_path / "legacy", raw_tensor(4, 0, (2, 2), (1, 2)), ["0"], struct.pack("<q", 4) + FOUR)
    assert load(legacy).value.read().tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("num", "offset", "size", "stride"),
    [
        (2**60, 0, (2**60,), (1,)),
        (4, 0, (5,), (1,)),
        (4, 2, (3,), (1,)),
        (4, 0, (2, 2), (4, 1)),
        (4, 0, (10**12,), (0,)),  # one number, repeated
        (4, 0, (1000, 1000), (0, 0)),
        (4, 0, (2, 3), (1, 1)),  # overlapping rows
        (4, 2**62, (1,), (1,)),
    ],
)
def test_a_tensor_larger_than_its_file(tmp_path: Path, num: int, offset: int, size: Any, stride: Any) -> None:
    found = load(as_zip(tmp_path / "file", raw_tensor(num, offset, size, stride), {"0": FOUR})).value
    with pytest.raises(BadModel, match="16 bytes"):
        found.read()


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (-1, (1,), (1,)),
        (0, (-1,), (1,)),
        (0, (2,), (-1,)),
        (0, (2.0,), (1,)),
        (0, (True,), (1,)),
        (0, (2,), (1, 1)),
        (0, 4, 1),
        (0, (1,) * 9, (1,) * 9),
        ("0", (1,), (1,)),
    ],
)
def test_a_tensor_of_impossible_shape(tmp_path: Path, offset: Any, size: Any, stride: Any) -> None:
    with pytest.raises(BadModel, match="tensor"):
        load(as_zip(tmp_path / "file", raw_tensor(4, offset, size, stride), {"0": FOUR}))


@pytest.mark.parametrize(
    "pickled",
    [
        b"N" + b"r" + struct.pack("<I", 2**32 - 1) + b".",  # a huge memo key
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",  # a huge byte array
        b"\x8e" + struct.pack("<Q", 2**62) + b".",  # huge bytes
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",  # a huge number
        b"X" + struct.pack("<I", 2**32 - 1) + b".",
        b"]" * 3_000 + b"a" * 2_999 + b".",  # lists in lists
        b"}" + b")" + b"\x85" * 3_000 + b"Ns.",  # a key of tuples in tuples
        b"L" + b"9" * 100_000 + b"L\n.",
        b"(" * 3_000 + b".",
        b"\x95" + struct.pack("<Q", 2**63) + b"N.",
    ],
)
def test_huge_claims_use_no_memory(tmp_path: Path, pickled: bytes) -> None:
    for path in both(tmp_path, pickled):
        result = value_or_message(path)
        assert not isinstance(result, str) or len(result) < 500


def called_again(value: bytes, function: bytes, call: bytes) -> bytes:
    """Return a pickle that memoizes a value as 0 and a function as 1, and executes `call` a thousand times."""
    return b"(" + value + b"q\x00" + b"0" + function + b"q\x01" + b"0" + call * 1000 + b"t."


LONG = 1 << 12
TEXT = b"X" + struct.pack("<I", LONG) + b"a" * LONG
CALLED_AGAIN = {
    "bytes": called_again(TEXT, b"c_codecs\nencode\n", b"h\x01h\x00\x85R"),
    "texts of numpy": called_again(
        TEXT,
        b"cnumpy\ndtype\nX\x05\0\0\0S4096\x85Rq\x02" + b"0cnumpy.core.multiarray\nscalar\n",
        b"h\x01h\x02h\x00\x86R",
    ),
    "dictionaries": called_again(
        b"](" + b"K\x01K\x02\x86" * LONG + b"e", b"ccollections\nOrderedDict\n", b"h\x01h\x00\x85R"
    ),
    "attributes": called_again(
        b"}(" + b"".join(b"J" + struct.pack("<i", k) + b"N" for k in range(LONG)) + b"u", b"ca\nb\n", b"h\x01)Rh\x00b"
    ),
    "arguments": called_again(b"(" + b"N" * LONG + b"t", b"cnumpy.core.multiarray\n_reconstruct\n", b"h\x01h\x00R"),
}


@pytest.mark.parametrize("name", CALLED_AGAIN)
def test_a_value_passed_to_a_thousand_calls_is_rejected(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a copy per call, a megabyte would become gigabytes."""
    monkeypatch.setattr(safe_pickle, "SPARE_COPIES", 1 << 16)
    for path in both(tmp_path, CALLED_AGAIN[name]):
        with pytest.raises(BadModel, match="copies"):
            load(path)


def test_a_long_tuple_as_a_key_is_rejected(tmp_path: Path) -> None:
    for path in both(tmp_path, pickle.dumps({tuple(range(100)): 1}, 2)):
        with pytest.raises(BadModel, match="100 parts"):
            load(path)


def test_numbers_of_thousands_of_digits_are_rejected(tmp_path: Path) -> None:
    """Even printing them would take long."""
    for path in both(tmp_path, pickle.dumps({"epoch": 10**4000}, 2)):
        with pytest.raises(BadModel, match="LONG4"):
            load(path)
    for size in ((2**64,), (2**1000, 2)):
        with pytest.raises(BadModel, match="sizes"):
            load(as_zip(tmp_path / "file", raw_tensor(4, 0, size, (1,) * len(size)), {"0": FOUR}))


def test_keys_with_equal_hashes_are_rejected(tmp_path: Path) -> None:
    """Integers that differ by a multiple of 2⁶¹ - 1 have the same hash, which makes a dictionary of them very slow."""
    crowd = {key * (2**61 - 1): None for key in range(1, 100)}
    for path in both(tmp_path, pickle.dumps(crowd, 2)):
        with pytest.raises(BadModel, match="key"):
            load(path)


def test_too_many_instructions_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_INSTRUCTIONS", 100)
    for path in both(tmp_path, b"N0" * 60 + b"N."):
        with pytest.raises(BadModel, match="100 instructions"):
            load(path)


def test_arrays_of_impossible_shape(tmp_path: Path) -> None:
    array = load(save([np.arange(6.0)], tmp_path / "file")).value[0]
    for shape in ((2**70,), (-1, 4), (5,), "six", (2.5,)):
        array._state = (array._state[0], shape, *array._state[2:])
        with pytest.raises(BadModel, match="numpy array"):
            array.read()


@pytest.mark.parametrize("name", NAMES_OF_ATTACKS)
def test_an_attack_as_a_plain_pickle_does_not_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(attacks(tmp_path / "canary")[name])
    with contextlib.suppress(BadModel):
        expect_only_data(load(tmp_path / "file", bare=True).value)
    assert not (tmp_path / "canary").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, bytes]:
    value = {"config": {"drop": 0.2}, "state_dict": {"a": torch.randn(3, 2)}, "model_val": [np.float64(1.5)]}
    folder = tmp_path_factory.mktemp("whole")
    return {is_zip: save(value, folder / str(is_zip), is_zip).read_bytes() for is_zip in (True, False)}


@FORMATS
@given(data=st.data())
def test_a_damaged_file_raises_bad_model_or_is_read(
    whole: dict[bool, bytes], tmp_path_factory: pytest.TempPathFactory, is_zip: bool, data: st.DataObject
) -> None:
    content = bytearray(whole[is_zip])
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(1, len(content)))
    expect_value_or_bad_model(bytes(content[: keep if data.draw(st.booleans()) else None]), tmp_path_factory)


@given(data=st.binary(max_size=60), opcodes=st.lists(st.sampled_from(sorted(pickle._Unpickler.dispatch)), max_size=30))  # type: ignore[attr-defined]
def test_random_pickles(tmp_path_factory: pytest.TempPathFactory, data: bytes, opcodes: list[int]) -> None:
    folder = tmp_path_factory.mktemp("any")
    for pickled in (data, bytes(opcodes) + b".", bytes(opcodes) + data):
        expect_value_or_bad_model(as_zip(folder / "file", pickled).read_bytes(), tmp_path_factory)


def expect_value_or_bad_model(content: bytes, folders: pytest.TempPathFactory) -> None:
    path = folders.getbasetemp() / "damaged"
    path.write_bytes(content)
    try:
        value = load(path).value
        if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
            for each in value["state_dict"].values():
                if isinstance(each, StoredTensor):
                    each.read()
    except BadModel:
        pass
