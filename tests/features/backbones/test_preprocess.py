import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from midreel.errors import BadBatch, BadModel
from midreel.features.backbones.preprocess import Preprocessing
from tools.fuzz_videos import Outcome, in_child

CLIP_SETTINGS = {
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 224,
}  # as the first published CLIPs have it


def _read(folder: Path, settings: dict[str, object], name: str = "preprocessor_config.json") -> Preprocessing:
    (folder / name).write_text(json.dumps(settings))
    return Preprocessing.read(folder)


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)


def _expect_as_transformers(ours: Preprocessing, theirs: CLIPImageProcessorPil, image: np.ndarray) -> None:
    expected = theirs(image, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    found = ours.normalise(torch.from_numpy(ours.prepare(image))[None])
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


def test_old_settings_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    ours = _read(tmp_path, CLIP_SETTINGS)
    assert (ours.image_size, ours.crop, ours.resample, ours.scale) == (224, (224, 224), "bicubic", 1 / 255)
    theirs = CLIPImageProcessorPil.from_pretrained(tmp_path)
    for size in ((360, 640), (301, 225), (224, 224), (100, 37)):
        _expect_as_transformers(ours, theirs, _noise(*size))


@given(
    st.integers(8, 16), st.integers(1, 8), st.tuples(st.integers(1, 60), st.integers(1, 60)), st.sampled_from([0, 2, 3])
)
def test_pixels_equal_those_of_transformers(
    tmp_path_factory: pytest.TempPathFactory, size: int, crop: int, image: tuple[int, int], resample: int
) -> None:
    theirs = CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": crop, "width": crop}, resample=resample
    )
    folder = tmp_path_factory.mktemp("processor")
    theirs.save_pretrained(folder)
    _expect_as_transformers(Preprocessing.read(folder), theirs, _noise(*image))


def test_a_square_size_without_crop(tmp_path: Path) -> None:
    theirs = CLIPImageProcessorPil(size={"height": 12, "width": 12}, do_center_crop=False)
    theirs.save_pretrained(tmp_path)
    ours = Preprocessing.read(tmp_path)
    assert ours.crop == (12, 12)
    _expect_as_transformers(ours, theirs, _noise(30, 20))


def test_disabled_steps(tmp_path: Path) -> None:
    theirs = CLIPImageProcessorPil(
        size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}, do_rescale=False, do_normalize=False
    )
    theirs.save_pretrained(tmp_path)
    ours = Preprocessing.read(tmp_path)
    image = _noise(10, 20)
    found = ours.normalise(torch.from_numpy(ours.prepare(image))[None])
    expected = theirs(image, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    assert np.array_equal(found, expected.float())


def test_processor_config_of_newer_transformers(tmp_path: Path) -> None:
    newer = _read(tmp_path, {"image_processor": CLIP_SETTINGS}, "processor_config.json")
    assert newer == _read(tmp_path, CLIP_SETTINGS)


def test_a_missing_file_and_a_missing_setting(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"preprocessor_config\.json does not exist"):
        Preprocessing.read(tmp_path)
    lacking = {name: value for name, value in CLIP_SETTINGS.items() if name != "image_mean"}
    with pytest.raises(BadModel, match="'image_mean'"):
        _read(tmp_path, lacking)


@pytest.mark.parametrize(
    "change", [{"do_resize": False}, {"do_center_crop": False}, {"crop_size": 256}, {"size": {"shortest_edge": 200}}]
)
def test_settings_without_a_fixed_image_size_are_rejected(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(BadModel, match=r"resizes to .* and crops to"):
        _read(tmp_path, CLIP_SETTINGS | change)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "image",
    [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3)), np.zeros((0, 8, 3), np.uint8)],
)
def test_invalid_images_are_rejected(tmp_path: Path, image: np.ndarray) -> None:
    with pytest.raises(BadBatch, match=r"is \w+ of shape \("):
        _read(tmp_path, CLIP_SETTINGS).prepare(image)


@pytest.mark.parametrize("shape", [(60_000, 1), (1, 60_000)])
def test_only_the_middle_of_a_very_long_image_is_resized(tmp_path: Path, shape: tuple[int, int]) -> None:
    """The resized image would take gigabytes, and the crop only keeps its middle."""
    preprocessing = _read(tmp_path, CLIP_SETTINGS)
    image = np.zeros((*shape, 3), np.uint8)
    image[tuple(slice(None) if side == 1 else slice(29_000, 31_000) for side in shape)] = 200

    def prepare() -> Outcome:
        pixels = preprocessing.prepare(image)
        return Outcome(kind=f"{tuple(pixels.shape)} {int(pixels.min())} {int(pixels.max())}")

    outcome, _ = in_child(prepare, seconds=60.0, memory=2**28)
    assert outcome == Outcome(kind="(3, 224, 224) 200 200")
