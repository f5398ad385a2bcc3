from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.errors import BadLibrary, BadPackage, BadSetting
from midreel.features.backbones import base
from midreel.library import encoder
from midreel.library.layout import Generation
from midreel.library.windows import Windowing
from midreel.methods import MSC, ClipZeroShot, load_method
from midreel.methods.base import Method
from midreel.methods.clip_zero_shot import ClipZeroShotConfig
from midreel.methods.encoder import MethodEncoder
from midreel.methods.model_files import FORM
from midreel.methods.msc import MSCConfig
from midreel.methods.onnx_encoder import OnnxEncoder
from midreel.methods.untrained import ZeroShotEncoder

SIZES = {"num_frames": 8, "num_clips": 4}


def zero_shot(**changes: float) -> Method:
    return ClipZeroShot(ClipZeroShotConfig(width=4, **SIZES | changes))  # type: ignore[arg-type]


def msc(seed: int = 0) -> Method:
    torch.manual_seed(seed)
    small = {"video_width": 4, "text_width": 6, "width": 8, "num_heads": 2, "min_clips": 2}
    return MSC(MSCConfig(**SIZES | small)).eval()  # type: ignore[arg-type]


def digest(method: Method) -> str:
    return encoder.digest(MethodEncoder(method))


@pytest.mark.parametrize("method", [zero_shot(), msc()], ids=["zero-shot", "msc"])
@pytest.mark.parametrize("num_frames", [1, 8, 16, 17, 300])
def test_a_window_is_encoded_like_a_video(method: Method, num_frames: int) -> None:
    frames, windowing = np.random.default_rng(0).normal(size=(num_frames, 4)).astype(np.float32), Windowing.of(8)
    encoded = encoder.encode_windows(MethodEncoder(method), frames, windowing)
    windows = windowing.windows(num_frames)
    for number in {0, len(windows) // 2, len(windows) - 1}:
        cut = frames[windows[number].first : windows[number].last]
        with torch.no_grad():
            alone = method.encode_videos(method.prepare_videos(torch.from_numpy(cut)[None]))
        for branch, part in alone.items():
            torch.testing.assert_close(torch.from_numpy(encoded[branch].vectors[number]), part.vectors[0])
            assert encoded[branch].mask[number].tolist() == part.mask[0].tolist()
            torch.testing.assert_close(torch.from_numpy(encoded[branch].spans[number]), part.spans[0])
    assert all(len(part) == len(windows) for part in encoded.values())


@pytest.mark.parametrize("method", [zero_shot(), msc()], ids=["zero-shot", "msc"])
def test_a_model_is_saved_and_identified_by_its_digest(method: Method, tmp_path: Path) -> None:
    encoder.save(MethodEncoder(method), tmp_path / "model")
    again = load_method(tmp_path / "model")
    assert again.config == method.config
    assert digest(again) == digest(method)
    assert len({digest(each) for each in (zero_shot(), zero_shot(clip_weight=0.5), msc(), msc(seed=1))}) == 4


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_model_is_refused(tmp_path: Path, name: str) -> None:
    """The last byte of the weights is damaged, which leaves a valid number."""
    method = msc()
    generation = Generation(folder=tmp_path, card=encoder.card_of(MethodEncoder(method), "runs/msc"))
    encoder.save(MethodEncoder(method), generation.model)
    assert encoder.digest(encoder.open_generation(generation, "cpu")) == generation.card.digest
    path = generation.model / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(BadLibrary, match="--retry"):
        encoder.open_generation(generation, "cpu")


def test_a_card() -> None:
    card = encoder.card_of(MethodEncoder(msc()), "runs/msc")
    assert (card.model, card.width, card.windows) == (
        str(Path("runs/msc").absolute()),
        8,
        Windowing(size=8, longest=16),
    )
    assert card.branch_weights == {"clip": pytest.approx(0.4), "frame": 0.6}


@pytest.mark.parametrize("method", [zero_shot(), msc()], ids=["zero-shot", "msc"])
def test_a_wrong_device_is_not_a_damaged_library(method: Method, tmp_path: Path) -> None:
    generation = Generation(folder=tmp_path, card=encoder.card_of(MethodEncoder(method), "runs/msc"))
    encoder.save(MethodEncoder(method), generation.model)
    with pytest.raises(BadSetting, match="no-such-device"):
        encoder.open_generation(generation, "no-such-device")


# ---------------------------------------------------------------- engines


def generation_of(method: Method, folder: Path) -> Generation:
    generation = Generation(folder=folder, card=encoder.card_of(MethodEncoder(method), "runs/mine"))
    encoder.save(MethodEncoder(method), generation.model)
    return generation


def test_a_model_without_training_needs_no_torch(tmp_path: Path) -> None:
    generation = generation_of(zero_shot(), tmp_path)
    assert isinstance(encoder.open_generation(generation, "cpu"), ZeroShotEncoder)
    assert isinstance(encoder.open_generation(generation, "cpu", "torch"), MethodEncoder)
    assert encoder.is_untrained(generation)
    assert not encoder.needs_torch(generation)


def test_a_network_without_a_form_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = generation_of(msc(), tmp_path)
    assert isinstance(encoder.open_generation(generation, "cpu"), MethodEncoder)
    assert encoder.needs_torch(generation)
    with pytest.raises(BadSetting, match="ONNX form"):
        encoder.open_generation(generation, "cpu", "onnx")
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    with pytest.raises(BadPackage, match=r"midreel\[train\]"):
        encoder.open_generation(generation, "cpu")
    with pytest.raises(BadPackage, match=r"midreel\[train\]"):
        encoder.make_form(generation)


@pytest.mark.slow
def test_the_form_of_a_network_is_made_once_and_used_if_it_is_intact(tmp_path: Path) -> None:
    generation = generation_of(msc(), tmp_path)
    assert all(difference <= 1e-4 for difference in encoder.make_form(generation).values())
    assert not encoder.needs_torch(generation)
    assert isinstance(encoder.open_generation(generation, "cpu"), OnnxEncoder)
    assert encoder.digest(encoder.open_generation(generation, "cpu")) == generation.card.digest
    for name in ("query_encoder.onnx", "encoders.json"):
        whole = (generation.model / name).read_bytes()
        (generation.model / name).write_bytes(whole[:-5] + b"12345")
        assert isinstance(encoder.open_generation(generation, "cpu"), MethodEncoder)
        (generation.model / name).write_bytes(whole)
    other = generation_of(msc(seed=1), tmp_path / "other")
    for name in FORM:
        (other.model / name).write_bytes((generation.model / name).read_bytes())
    assert isinstance(encoder.open_generation(other, "cpu"), MethodEncoder)
