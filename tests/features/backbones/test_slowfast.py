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
def test_a_clip_is_what_the_network_makes_of_its_normalised_frames(
    backbone: Backbone, weights: dict[str, torch.Tensor]
) -> None:
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


def test_images_make_vectors_by_the_window(backbone: Backbone) -> None:
    assert backbone.window == 32
    assert backbone.encode_images([]).shape == (0, 2304)
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(
        BadBatch, match=r"33 images, expected a multiple of 32, for so many make one vector; repeat the"
    ):
        backbone.encode_images([image] * 33)
    with pytest.raises(BadBatch, match=r"clips of 31 frames, expected 32; take 32 from one vector to the next"):
        backbone.encode_pixels(_clips(1)[:, 1:])


@pytest.mark.slow
def test_images_of_any_size_are_a_clip(backbone: Backbone) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (32, 40, 60, 3), np.uint8))
    pixels = np.stack([backbone.prepare(image) for image in images])[None]
    np.testing.assert_allclose(backbone.encode_images(images), backbone.encode_pixels(pixels), rtol=1.3e-6, atol=1e-5)


def test_it_reads_no_texts(backbone: Backbone) -> None:
    assert backbone.encode_texts([]) == []
    with pytest.raises(
        BadSetting, match=r"asked to read 2 texts, expected none, for it sees videos only; read them wi"
    ):
        backbone.encode_texts(["a", "b"])


def test_the_fingerprint_says_what_decides_a_feature(backbone: Backbone, file: Path) -> None:
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


def test_its_features_are_kept_in_a_store_without_texts(backbone: Backbone, tmp_path: Path) -> None:
    fingerprint = replace(backbone.fingerprint, frame_rate=0.5, dtype="float16")
    with FeatureStore.create(tmp_path / "features.h5", fingerprint) as store:
        vectors = backbone.encode_pixels(_clips(1))
        store.add_video("a", VideoFeatures(frames=vectors, times=np.zeros(1), duration=2.0))
        assert store.text_ids() == []
        np.testing.assert_allclose(store.video("a").frames, vectors, atol=1e-2, rtol=1e-2)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no file '.*nowhere.pkl' \(from 'slowfast:.*, expected the weights of a"):
        load_backbone(f"slowfast:{tmp_path / 'nowhere.pkl'}")


def test_a_device_that_is_not_here(file: Path) -> None:
    with pytest.raises(BadSetting, match=r"the device 'toaster' cannot be used"):
        load_backbone(f"slowfast:{file}", device="toaster")
