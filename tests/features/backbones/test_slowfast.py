import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import UInt8

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.features import Backbone, FeatureStore, load_backbone
from midreel.features.backbones.base import Fingerprint
from midreel.types import VideoFeatures
from tests.features.slowfast_twin import random_weights, twin


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return random_weights("pytorchvideo")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("slowfast") / "SLOWFAST_8x8_R50.pyth"
    torch.save({"model_state": weights}, path)
    return path


@pytest.fixture(scope="module")
def backbone(file: Path) -> Backbone:
    return load_backbone(f"slowfast:{file}")


def _clips(num: int, side: int = 32) -> UInt8[np.ndarray, "N 32 3 S S"]:
    return np.random.default_rng(num).integers(0, 256, (num, 32, 3, side, side), np.uint8)


@torch.no_grad()
def test_clips_are_normalised_and_encoded(backbone: Backbone, weights: dict[str, torch.Tensor]) -> None:
    clips = _clips(2)
    normalised = (torch.from_numpy(clips).transpose(1, 2).double() / 255 - 0.45) / 0.225
    expected = twin(weights, "pytorchvideo", normalised.float())
    found = backbone.encode_pixels(clips)
    assert found.shape == (2, 2304)
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)
    np.testing.assert_allclose(backbone.encode_pixels(clips[1:])[0], found[1], atol=1e-4, rtol=1e-4)


def test_frames_are_resized_to_the_short_side_and_cropped_in_the_middle(backbone: Backbone) -> None:
    wide = np.zeros((224, 448, 3), np.uint8)
    wide[:, 112:336] = 200
    assert backbone.prepare(wide).shape == (3, 224, 224)
    assert (backbone.prepare(wide) == 200).all()
    assert backbone.prepare(np.zeros((120, 90, 3), np.uint8)).shape == (3, 224, 224)


def test_images_must_fill_windows(backbone: Backbone) -> None:
    assert backbone.window == 32
    assert backbone.encode_images([]).shape == (0, 2304)
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(BadBatch, match="33 images, expected a multiple of 32"):
        backbone.encode_images([image] * 33)
    with pytest.raises(BadBatch, match="31 frames, expected 32"):
        backbone.encode_pixels(_clips(1)[:, 1:])


@pytest.mark.slow
def test_images_of_any_size_are_encoded(backbone: Backbone) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (32, 40, 60, 3), np.uint8))
    pixels = np.stack([backbone.prepare(image) for image in images])[None]
    np.testing.assert_allclose(backbone.encode_images(images), backbone.encode_pixels(pixels), rtol=1.3e-6, atol=1e-5)


def test_texts_are_rejected(backbone: Backbone) -> None:
    assert backbone.encode_texts([]) == []
    with pytest.raises(BadSetting, match="got 2"):
        backbone.encode_texts(["a", "b"])


def test_the_fingerprint(backbone: Backbone, file: Path) -> None:
    assert backbone.fingerprint == Fingerprint(
        backbone="slowfast, resnet 50, 8x8, 32 frames a vector",
        weights=hashlib.sha256(file.read_bytes()).hexdigest(),
        width=2304,
        image_size=224,
        crop=(224, 224),
        resample="bicubic",
        scale=1 / 255,
        mean=(0.45, 0.45, 0.45),
        std=(0.225, 0.225, 0.225),
    )
    assert backbone.fingerprint.source == f"slowfast:{file}"
    assert backbone.fingerprint.word_width is None
    assert isinstance(backbone, Backbone)


def test_features_are_stored_without_texts(backbone: Backbone, tmp_path: Path) -> None:
    fingerprint = replace(backbone.fingerprint, frame_rate=0.5, dtype="float16")
    with FeatureStore.create(tmp_path / "features.h5", fingerprint) as store:
        vectors = backbone.encode_pixels(_clips(1))
        store.add_video("a", VideoFeatures(frames=vectors, times=np.zeros(1), duration=2.0))
        assert store.text_ids() == []
        np.testing.assert_allclose(store.video("a").frames, vectors, atol=1e-2, rtol=1e-2)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"nowhere\.pkl"):
        load_backbone(f"slowfast:{tmp_path / 'nowhere.pkl'}")


def test_an_unavailable_device(file: Path) -> None:
    with pytest.raises(BadSetting, match="toaster"):
        load_backbone(f"slowfast:{file}", device="toaster")
