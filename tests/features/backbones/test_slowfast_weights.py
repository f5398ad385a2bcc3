import builtins
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadModel
from midreel.features.backbones.slowfast_net import SlowFast
from midreel.features.backbones.slowfast_weights import FORMS, fill
from tests.features.prank import Prank
from tests.features.slowfast_twin import pickled_by_python2, published_shapes, random_weights, twin

SHRINK = 8
# As PySlowFast prints them when it loads its caffe2 files.
PRINTED = {
    "res2_0_branch1_w": (256, 80, 1, 1, 1),
    "res2_0_branch2a_w": (64, 80, 1, 1, 1),
    "res3_0_branch2a_w": (128, 320, 1, 1, 1),
    "res4_0_branch2a_w": (256, 640, 3, 1, 1),
    "res4_4_branch2c_w": (1024, 256, 1, 1, 1),
    "res5_0_branch2a_w": (512, 1280, 3, 1, 1),
    "res_conv1_bn_rm": (64,),
    "t_conv1_w": (8, 3, 5, 7, 7),
    "t_pool1_subsample_bn_rm": (16,),
    "t_res2_1_branch2c_w": (32, 8, 1, 1, 1),
    "t_res3_2_branch2a_w": (16, 64, 3, 1, 1),
    "t_res5_0_branch1_w": (256, 128, 1, 1, 1),
    "t_res_conv1_bn_b": (8,),
}


def _content(form: str, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the content of a published file: the weights and the other entries."""
    if form == "caffe2":
        blobs: dict[str, Any] = {name: tensor.numpy() for name, tensor in weights.items()}
        blobs |= {f"{name}_momentum": array * 0 for name, array in blobs.items()}
        blobs |= {"lr": np.float32(0.1), "model_iter": np.array([196]), "pred_w": np.ones((4, 288), np.float32)}
        return {"blobs": blobs | {"pred_b": np.ones(4, np.float32)}}
    state = dict(weights)
    norms = {name.rsplit(".", 1)[0] for name in weights if name.endswith(".running_mean")}
    state |= {f"{norm}.num_batches_tracked": torch.tensor(7) for norm in norms}
    state |= {"blocks.6.proj.weight": torch.ones(4, 288), "blocks.6.proj.bias": torch.ones(4)}
    return {"model_state": state, "cfg": "MODEL: slowfast", "epoch": 195}


def _write(path: Path, form: str, content: object) -> Path:
    if form == "caffe2":
        path.write_bytes(pickled_by_python2(content))
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("form", ["caffe2", "pytorchvideo"])
def test_each_weight_has_its_published_name_and_shape(form: str) -> None:
    with torch.device("meta"):
        network = SlowFast()
    ours = {name: tuple(tensor.shape) for name, tensor in FORMS[form == "pytorchvideo"].of(network)}
    assert ours == published_shapes(form)
    assert len(ours) == 5 * 110
    filled = {id(tensor) for _, tensor in FORMS[form == "pytorchvideo"].of(network)}
    kept = {name: tensor for name, tensor in network.state_dict(keep_vars=True).items() if "num_batches" not in name}
    assert filled == {id(tensor) for tensor in kept.values()}


def test_names_equal_those_that_pyslowfast_prints() -> None:
    shapes = published_shapes("caffe2")
    assert {name: shapes[name] for name in PRINTED} == PRINTED


@torch.no_grad()
@pytest.mark.parametrize("form", ["caffe2", "pytorchvideo"])
def test_the_loaded_network_computes_the_same_as_the_reference(form: str, tmp_path: Path) -> None:
    weights = random_weights(form, shrink=SHRINK)
    network = SlowFast(width=64 // SHRINK)
    fill(network, _write(tmp_path / "weights", form, _content(form, weights)))
    for name, tensor in FORMS[form == "pytorchvideo"].of(network):
        assert torch.equal(tensor, weights[name])
    clips = torch.randn(2, 3, 32, 48, 48)
    expected = twin(weights, form, clips)
    assert expected.std() > 0.01
    torch.testing.assert_close(network.eval()(clips), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "save",
    [
        pickle.dumps,
        pickled_by_python2,
        lambda value: pickled_by_python2(value, protocol=0),
        lambda value: pickle.dumps(value, 2),
    ],
)
def test_pickles_of_python_2_and_3(save: Any, tmp_path: Path) -> None:
    weights = random_weights("caffe2", shrink=SHRINK)
    (tmp_path / "weights.pkl").write_bytes(save(_content("caffe2", weights)))
    network = SlowFast(width=64 // SHRINK)
    fill(network, tmp_path / "weights.pkl")
    assert torch.equal(network.slow.stem.conv.weight, weights["conv1_w"])


def test_old_torch_files_that_are_not_zip_files(tmp_path: Path) -> None:
    weights = random_weights("pytorchvideo", shrink=SHRINK)
    content = _content("pytorchvideo", weights)
    torch.save(content, tmp_path / "weights.pkl", _use_new_zipfile_serialization=False)
    network = SlowFast(width=64 // SHRINK)
    fill(network, tmp_path / "weights.pkl")
    assert torch.equal(network.fast.stem.conv.weight, weights["blocks.0.multipathway_blocks.1.conv.weight"])


@pytest.mark.parametrize("form", ["caffe2", "pytorchvideo"])
def test_missing_and_unknown_weights(form: str, tmp_path: Path) -> None:
    weights = random_weights(form, shrink=SHRINK)
    name, *_ = weights
    without = {other: value for other, value in weights.items() if other != name}
    network = SlowFast(width=64 // SHRINK)
    path = _write(tmp_path / "weights", form, _content(form, without))
    with pytest.raises(BadModel, match=rf"lacks 1 of the 550 .*'{name}'"):
        fill(network, path)
    _write(path, form, _content(form, weights | {"nonlocal_conv4_6_g_w": torch.ones(3)}))
    with pytest.raises(BadModel, match=r"has 1 weights .*'nonlocal_conv4_6_g_w'"):
        fill(network, path)


def test_a_file_of_another_slowfast(tmp_path: Path) -> None:
    weights = random_weights("caffe2", shrink=SHRINK)
    weights["t_pool1_subsample_w"] = weights["t_pool1_subsample_w"][:, :, 1:-1]
    path = _write(tmp_path / "SLOWFAST_4x16_R50.pkl", "caffe2", _content("caffe2", weights))
    with pytest.raises(BadModel, match=r"t_pool1_subsample_w has shape \(2, 1, 5, 1, 1\), expected \(2, 1, 7, 1, 1\)"):
        fill(SlowFast(width=64 // SHRINK), path)


@pytest.mark.parametrize("value", ["a string", None, np.array(["a"], object), np.arange(8)])
def test_weights_that_are_not_numbers(value: object, tmp_path: Path) -> None:
    content = _content("caffe2", random_weights("caffe2", shrink=SHRINK))
    content["blobs"]["res_conv1_bn_s"] = value
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(BadModel, match="res_conv1_bn_s"):
        fill(SlowFast(width=64 // SHRINK), tmp_path / "weights.pkl")


@pytest.mark.parametrize("content", [{}, {"state_dict": {}}, [1], {"blobs": 3}, {"model_state": []}, {3: 4}])
def test_other_files_are_rejected(content: object, tmp_path: Path) -> None:
    for save in (lambda path: path.write_bytes(pickle.dumps(content)), lambda path: torch.save(content, path)):
        save(tmp_path / "file")
        with pytest.raises(BadModel, match=r"SLOWFAST_8x8_R50\.pkl"):
            fill(SlowFast(width=8), tmp_path / "file")


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    prank = {"blobs": {"conv1_w": Prank(tmp_path / "ran")}}
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps(prank))
    torch.save({"model_state": prank["blobs"]}, tmp_path / "weights.pyth")
    for name in ("weights.pkl", "weights.pyth"):
        with pytest.raises(BadModel, match=rf"{name} lacks 549 of the 550|lacks 550"):
            fill(SlowFast(width=8), tmp_path / name)
        assert not (tmp_path / "ran").exists()
    pickle.loads((tmp_path / "weights.pkl").read_bytes())
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "called", [builtins.eval, builtins.getattr, os.system, subprocess.Popen, np.load, np.frombuffer, torch.load]
)
def test_functions_in_a_pickle_are_rejected(called: object, tmp_path: Path) -> None:
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"blobs": called}))
    with pytest.raises(BadModel, match="no blobs or model_state"):
        fill(SlowFast(width=8), tmp_path / "weights.pkl")
    content = _content("caffe2", random_weights("caffe2", shrink=SHRINK))
    content["blobs"]["res_conv1_bn_s"] = called
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(BadModel, match=r"res_conv1_bn_s has shape None, expected \(8,\)"):
        fill(SlowFast(width=64 // SHRINK), tmp_path / "weights.pkl")


@given(st.data())
def test_damaged_files_are_rejected(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = pickled_by_python2({"blobs": {"conv1_w": np.ones((2, 3), np.float32), "lr": np.float32(1)}})
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from([whole[:place], whole[:place] + data.draw(st.binary(max_size=8)) + whole[place + 1 :]])
    )
    path = tmp_path_factory.mktemp("damaged") / "weights.pkl"
    path.write_bytes(damaged)
    with pytest.raises(BadModel):
        fill(SlowFast(width=8), path)
