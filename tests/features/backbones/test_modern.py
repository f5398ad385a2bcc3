"""MetaCLIP 2 and VideoPrism: tiny random models of the real classes of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MetaClip2Model, PreTrainedTokenizerFast, VideoPrismClipModel

from midreel.errors import BadBatch, BadModel, BadSetting
from midreel.features import load_backbone
from midreel.features.backbones.base import Backbone
from tests.features.tiny_modern import save_metaclip_2, save_videoprism

TEXTS = ["a red ball", "der rote ball and the dog", "赤い ball"]


@pytest.fixture(scope="module")
def metaclip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_metaclip_2(tmp_path_factory.mktemp("metaclip"))


@pytest.fixture(scope="module")
def videoprism(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_videoprism(tmp_path_factory.mktemp("videoprism"))


def images(number: int) -> list[np.ndarray]:
    chance = np.random.default_rng(0)
    return [chance.integers(0, 256, (40, 60, 3), np.uint8) for _ in range(number)]


def test_metaclip_2_computes_what_transformers_does(metaclip: Path) -> None:
    backbone = load_backbone(f"local-dir:{metaclip}")
    assert isinstance(backbone, Backbone)
    assert backbone.fingerprint.backbone.startswith("metaclip_2")
    assert (backbone.fingerprint.width, backbone.fingerprint.word_width, backbone.window) == (24, 32, 1)
    model, tokenizer = (
        MetaClip2Model.from_pretrained(metaclip).eval(),
        PreTrainedTokenizerFast.from_pretrained(metaclip),
    )
    with torch.no_grad():
        expected = model.get_text_features(**tokenizer(TEXTS, padding=True, return_tensors="pt")).pooler_output.numpy()
        pixels = np.stack([backbone.prepare(image) for image in images(2)])
        normalised = (torch.from_numpy(pixels).float() / 255 - 0.5) / 0.25
        seen = model.get_image_features(normalised).pooler_output.numpy()
    found = backbone.encode_texts(TEXTS)
    np.testing.assert_allclose(np.stack([text.sentence for text in found]), expected, atol=1e-4)
    assert [len(text.words) for text in found] == [5, 8, 4]
    np.testing.assert_allclose(backbone.encode_images(images(2)), seen, atol=1e-4)


def test_metaclip_2_needs_torch(metaclip: Path) -> None:
    with pytest.raises(BadSetting, match="metaclip_2"):
        load_backbone(f"local-dir:{metaclip}", engine="onnx")


def test_another_eos_is_refused(metaclip: Path, tmp_path: Path) -> None:
    folder = save_metaclip_2(tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match="EOS"):
        load_backbone(f"local-dir:{folder}")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match="tokenizer"):
        load_backbone(f"local-dir:{folder}")


def test_videoprism_computes_what_transformers_does(videoprism: Path) -> None:
    backbone = load_backbone(f"local-dir:{videoprism}")
    assert isinstance(backbone, Backbone)
    assert (backbone.fingerprint.width, backbone.fingerprint.joint_width, backbone.window) == (32, 32, 4)
    model = VideoPrismClipModel.from_pretrained(videoprism).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(videoprism)
    tokens = tokenizer(TEXTS, padding="max_length", max_length=8, return_tensors="pt")
    frames = np.stack([backbone.prepare(image) for image in images(8)]).reshape(2, 4, 3, 36, 36)
    with torch.no_grad():
        expected = model.get_text_features(tokens["input_ids"], tokens["attention_mask"]).pooler_output.numpy()
        seen = model.get_video_features(torch.from_numpy(frames).float() / 255).pooler_output.reshape(2, -1).numpy()
    found = backbone.encode_texts(TEXTS)
    np.testing.assert_allclose(np.stack([text.sentence for text in found]), expected, atol=1e-5)
    assert [len(text.words) for text in found] == [3, 6, 2]
    np.testing.assert_allclose(backbone.encode_images(images(8)), seen, atol=1e-5)
    assert backbone.encode_images([]).shape == (0, 32)
    assert backbone.encode_texts([]) == []


def test_videoprism_takes_whole_clips(videoprism: Path) -> None:
    backbone = load_backbone(f"local-dir:{videoprism}")
    with pytest.raises(BadBatch, match="multiple of 4"):
        backbone.encode_images(images(3))
    with pytest.raises(BadBatch):
        backbone.encode_pixels(np.zeros((1, 3, 3, 36, 36), np.uint8))


def test_a_videoprism_without_texts_is_refused(videoprism: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "videoprism", "hidden_size": 8}))
    with pytest.raises(BadModel, match="text"):
        load_backbone(f"local-dir:{tmp_path}")
