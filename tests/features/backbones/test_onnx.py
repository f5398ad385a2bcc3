"""onnxruntime computes what torch computes, from the same files. test_clip.py and test_siglip.py test both engines."""

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file, save_file

from midreel.errors import BadModel, BadPackage, BadSetting
from midreel.features import Backbone, load_backbone
from midreel.features.backbones import base, towers
from midreel.features.backbones.folder import Weights, read_config
from midreel.features.backbones.onnx import Onnx, problem
from midreel.features.backbones.preprocess import Preprocessing
from midreel.features.backbones.words import ClipWords
from midreel.io.onnx_graph import Graph
from tests.features.tiny_clip import EOS
from tests.features.tiny_siglip import save_tiny_siglip

TEXTS = ["a red ball", "", "x " * 99, f"The {EOS} ball", "naïve café 球 🎉's don't\n\tStop!", "a", "0123 --"]


@pytest.fixture(scope="module")
def tiny_siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_siglip(tmp_path_factory.mktemp("tiny") / "siglip")


@pytest.fixture(params=["shipped", "clip", "siglip"])
def folder(request: pytest.FixtureRequest, tiny_clip: Path, tiny_siglip: Path) -> Path:
    return {"shipped": base.SHIPPED["tiny-clip"], "clip": tiny_clip, "siglip": tiny_siglip}[request.param]


@pytest.fixture
def copy(tiny_clip: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_clip, tmp_path / "copy"))


def test_both_engines_compute_the_same_vectors_and_have_the_same_fingerprint(folder: Path) -> None:
    one, other = (load_backbone(f"local-dir:{folder}", engine=engine) for engine in ("onnx", "torch"))
    assert isinstance(one, Onnx)
    assert not isinstance(other, Onnx)
    assert one.fingerprint == other.fingerprint
    images = [
        np.random.default_rng(side).integers(0, 256, (side, 90 - side, 3), dtype=np.uint8) for side in (20, 45, 70)
    ]
    np.testing.assert_allclose(one.encode_images(images), other.encode_images(images), atol=1e-4)
    for found, expected in zip(one.encode_texts(TEXTS), other.encode_texts(TEXTS), strict=True):
        np.testing.assert_allclose(found.words, expected.words, atol=1e-4)
        np.testing.assert_allclose(found.sentence, expected.sentence, atol=1e-4)


def test_the_onnx_package_accepts_the_graphs(folder: Path) -> None:
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    text, vision, _ = read_config(folder, kind)
    weights = Weights(base.weight_files(folder))
    for graph in (
        towers.text_tower(kind, text, weights),
        towers.image_tower(kind, vision, weights, Preprocessing.read(folder)),
        towers.text_tower(kind, text, weights, int8=True),
    ):
        onnx.checker.check_model(onnx.load_from_string(graph.model(weights=True)))


def test_shapes_lists_the_weights_of_the_file_and_no_others(folder: Path) -> None:
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    text, vision, width = read_config(folder, kind)
    stored = {name: weight.shape for name, weight in load_file(folder / "model.safetensors").items()}
    assert stored.keys() - towers.shapes(kind, text, vision, width).keys() <= {"logit_scale", "logit_bias"}
    assert towers.shapes(kind, text, vision, width).items() <= stored.items()


def test_eight_bits_keep_the_direction_of_a_vector(folder: Path) -> None:
    whole, rounded = Onnx(folder), Onnx(folder, int8_images=True, int8_texts=True)
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    pairs = [(whole.encode_images([image])[0], rounded.encode_images([image])[0])]
    pairs += [
        (a.sentence, b.sentence) for a, b in zip(whole.encode_texts(TEXTS), rounded.encode_texts(TEXTS), strict=True)
    ]
    for one, other in pairs:
        assert (one != other).any()
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.995


def test_only_images_in_eight_bits_have_another_fingerprint(tiny_clip: Path) -> None:
    whole = Onnx(tiny_clip).fingerprint
    assert Onnx(tiny_clip, int8_texts=True).fingerprint == whole
    assert Onnx(tiny_clip, int8_images=True).fingerprint.difference(whole)
    spec = f"local-dir:{tiny_clip}"
    stored = load_backbone(spec, engine="onnx-int8").fingerprint
    assert stored.difference(whole)
    assert load_backbone(spec, like=stored.backbone).fingerprint == stored
    assert load_backbone(spec, engine="onnx-int8", like=whole.backbone).fingerprint == whole


@given(arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)))
def test_rounding_to_eight_bits_errs_by_at_most_half_a_step(matrix: Any) -> None:
    rounded, scales = towers.rounded_rows(matrix)
    assert (np.abs(rounded * scales[:, None] - matrix) <= 0.5001 * scales[:, None] + 1e-30).all()


@settings(deadline=None)
@given(st.text(max_size=40))
def test_the_tokenizer_equals_that_of_transformers(text: str) -> None:
    from transformers import CLIPTokenizer

    folder = base.SHIPPED["tiny-clip"]
    expected = CLIPTokenizer.from_pretrained(folder)(text, truncation=True, max_length=40)["input_ids"]
    assert ClipWords(folder, 40).ids(text) == expected


def test_a_vocabulary_in_two_files(copy: Path, backbone: Backbone) -> None:
    model = json.loads((copy / "tokenizer.json").read_text())["model"]
    (copy / "tokenizer.json").unlink()
    (copy / "vocab.json").write_text(json.dumps(model["vocab"]))
    (copy / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]))
    found = load_backbone(f"local-dir:{copy}", engine="onnx")
    assert found.fingerprint == backbone.fingerprint
    for text in TEXTS:
        expected = backbone.encode_texts([text])[0]
        np.testing.assert_array_equal(found.encode_texts([text])[0].words, expected.words)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda config: config["text_config"].pop("layer_norm_eps"), id="default"),
        pytest.param(lambda config: config.update(text_config_dict=None, vision_config_dict=None), id="null"),
        pytest.param(lambda config: config.update(text_config_dict=config.pop("text_config")), id="older"),
        pytest.param(lambda config: config["vision_config"].update(hidden_act="gelu"), id="activation"),
        pytest.param(
            lambda config: config.update(vision_config_dict={**config["vision_config"], "hidden_act": "gelu"}),
            id="older one overrides",
        ),
    ],
)
def test_a_config_means_what_it_means_to_transformers(copy: Path, change: Callable[[Any], object]) -> None:
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    one, other = (load_backbone(f"local-dir:{copy}", engine=engine) for engine in ("onnx", "torch"))
    assert one.fingerprint == other.fingerprint
    image = np.full((40, 40, 3), 77, np.uint8)
    np.testing.assert_allclose(one.encode_images([image]), other.encode_images([image]), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_weights_of_other_types(copy: Path, dtype: str, backbone: Backbone) -> None:
    weights = {name: weight.astype(dtype) for name, weight in load_file(copy / "model.safetensors").items()}
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    one, other = (load_backbone(f"local-dir:{copy}", engine=engine) for engine in ("onnx", "torch"))
    found, expected = (each.encode_texts(["a red ball"])[0].sentence for each in (one, other))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_weights_of_half_a_float(copy: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file as save_tensors

    weights = {name: weight.to(torch.bfloat16) for name, weight in load_tensors(copy / "model.safetensors").items()}
    save_tensors(weights, copy / "model.safetensors", {"format": "pt"})
    read = Weights([copy / "model.safetensors"])
    for name, weight in weights.items():
        np.testing.assert_array_equal(read[name], weight.float().numpy())


def test_weights_of_another_shape(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["text_projection.weight"] = weights["text_projection.weight"][:, :-1].copy()
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadModel, match=r"text_projection"):
        load_backbone(f"local-dir:{copy}", engine="onnx")


@pytest.mark.parametrize(
    "content",
    [b"", b"12", b"\xff" * 64, (99).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"]
    + [
        (len(text)).to_bytes(8, "little") + text + b"\0" * 8
        for text in (
            b'{"a": 3}',
            b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}',
            b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}',
            b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
        )
    ],
)
def test_a_damaged_file_of_weights(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadModel, match=r"model\.safetensors"):
        Weights([tmp_path / "model.safetensors"])


def test_a_session_keeps_its_weights_in_memory() -> None:
    graph = Graph()
    graph.input("x", "float32", ["N", 512])
    graph.output("y", graph.add("MatMul", "x", graph.constant(np.eye(512, dtype=np.float32)[::-1])), ["N", 512])
    session = graph.session()
    del graph
    gc.collect()
    _ = [np.full((512, 512), np.nan, np.float32) for _ in range(8)]  # would take the place of freed memory
    rows = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": rows})[0], rows[:, ::-1])


# ---------------------------------------------------------------- the choice of an engine


def test_what_onnxruntime_cannot_compute(copy: Path) -> None:
    assert problem(copy) == ""
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["hidden_act"] = "relu"
    (copy / "config.json").write_text(json.dumps(config))
    assert "relu" in problem(copy)
    assert not isinstance(load_backbone(f"local-dir:{copy}"), Onnx)
    with pytest.raises(BadSetting, match="relu"):
        load_backbone(f"local-dir:{copy}", engine="onnx")


def test_onnxruntime_computes_on_the_cpu_only(tiny_clip: Path) -> None:
    with pytest.raises(BadSetting, match="cuda"):
        load_backbone(f"local-dir:{tiny_clip}", device="cuda", engine="onnx")


def test_without_torch(tiny_clip: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    assert isinstance(load_backbone(f"local-dir:{tiny_clip}"), Onnx)
    with pytest.raises(BadPackage, match=r"midreel\[train\]"):
        load_backbone(f"local-dir:{tiny_clip}", engine="torch")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(BadPackage, match=r"pytorch_model\.bin"):
        load_backbone(f"local-dir:{copy}")
