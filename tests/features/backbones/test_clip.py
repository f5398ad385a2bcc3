import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from midreel.errors import BadModel, BadSetting
from midreel.features import Backbone, load_backbone
from tests.features.prank import Prank
from tests.features.tiny_clip import EOS

TEXTS = [
    "the red ball",
    "a boat",
    "",
    "The RED ball rises, then it falls behind the house",
    "été 🚀\n\tfin",
    "the " * 40,
]


Load = Callable[[Path], Backbone]


@pytest.fixture(scope="module", params=["onnx", "torch"])
def load(request: pytest.FixtureRequest) -> Load:
    return lambda folder: load_backbone(f"local-dir:{folder}", engine=request.param)


@pytest.fixture(scope="module")
def backbone(load: Load, tiny_clip: Path) -> Backbone:
    return load(tiny_clip)


@pytest.fixture(scope="module")
def reference(tiny_clip: Path) -> CLIPModel:
    return CLIPModel.from_pretrained(tiny_clip).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_clip: Path) -> CLIPTokenizer:
    return CLIPTokenizer.from_pretrained(tiny_clip)


@pytest.fixture
def copy(tiny_clip: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_clip, tmp_path / "copy"))


@torch.no_grad()
def test_words_and_sentences_equal_those_of_transformers(
    backbone: Backbone, reference: CLIPModel, tokenizer: CLIPTokenizer
) -> None:
    for text, found in zip(TEXTS, backbone.encode_texts(TEXTS), strict=True):
        tokens = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        expected = reference.get_text_features(**tokens)
        np.testing.assert_allclose(found.words, expected.last_hidden_state[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(found.sentence, expected.pooler_output[0], atol=1e-5, rtol=1e-5)


def test_a_text_does_not_depend_on_its_batch(backbone: Backbone) -> None:
    together = backbone.encode_texts(TEXTS)
    for batch in ([TEXTS[0]], TEXTS[:2], TEXTS[::-1]):
        for text, found in zip(batch, backbone.encode_texts(batch), strict=True):
            expected = together[TEXTS.index(text)]
            np.testing.assert_allclose(found.words, expected.words, atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(found.sentence, expected.sentence, atol=1e-5, rtol=1e-5)


def test_words_go_from_sos_to_eos_and_long_texts_are_cut_before_eos(backbone: Backbone) -> None:
    ball, empty, long = backbone.encode_texts(["the red ball", "", "the " * 40])
    assert ball.words.shape == (5, 32)  # three merged words
    assert empty.words.shape == (2, 32)
    assert long.words.shape == (16, 32)
    cut = backbone.encode_texts(["the " * 14])[0]
    np.testing.assert_allclose(long.words, cut.words, rtol=1.3e-6, atol=1e-5)
    np.testing.assert_allclose(long.sentence, cut.sentence, rtol=1.3e-6, atol=1e-5)


def test_the_sentence_is_the_projected_last_word(backbone: Backbone, reference: CLIPModel) -> None:
    # Also if the text contains the token itself, at which transformers would pool.
    for text in (*TEXTS, f"a {EOS} b"):
        found = backbone.encode_texts([text])[0]
        np.testing.assert_allclose(
            found.sentence,
            reference.text_projection(torch.from_numpy(found.words[-1])).detach(),
            rtol=1.3e-6,
            atol=1e-5,
        )


def test_images_equal_those_of_transformers(backbone: Backbone, reference: CLIPModel, tiny_clip: Path) -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*size, 3), np.uint8) for size in ((48, 64), (90, 40), (32, 32))]
    processor = CLIPImageProcessorPil.from_pretrained(tiny_clip)
    with torch.no_grad():
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        expected = reference.get_image_features(pixels).pooler_output
    found = backbone.encode_images(images)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    for image, row in zip(images, found, strict=True):
        np.testing.assert_allclose(backbone.encode_images([image])[0], row, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(
        backbone.encode_pixels(np.stack([backbone.prepare(image) for image in images])), found, rtol=1.3e-6, atol=1e-5
    )


def test_nothing_is_encoded_as_nothing(backbone: Backbone) -> None:
    assert backbone.encode_images([]).shape == (0, 24)
    assert backbone.encode_texts([]) == []


def test_features_can_be_fed_to_layers_that_learn(backbone: Backbone) -> None:
    features = backbone.encode_texts(["the red ball"])[0]
    torch.nn.Linear(32, 1)(torch.from_numpy(features.words)).sum().backward()


def test_the_fingerprint_says_what_decides_a_feature(backbone: Backbone, tiny_clip: Path) -> None:
    found = backbone.fingerprint
    assert found.backbone == (
        "clip; vision 2x48, 4 heads, quick_gelu, eps 1e-05, patch 8; text 2x32, 4 heads, quick_gelu, eps 1e-05"
    )
    assert found.weights == hashlib.sha256((tiny_clip / "model.safetensors").read_bytes()).hexdigest()
    assert (found.width, found.word_width, found.context_length) == (24, 32, 16)
    assert (found.image_size, found.crop, found.frame_rate, found.dtype) == (32, (32, 32), None, None)
    assert found.source == f"local-dir:{tiny_clip}"


def test_a_copy_has_the_same_fingerprint_until_one_weight_changes(load: Load, backbone: Backbone, copy: Path) -> None:
    assert load(copy).fingerprint == backbone.fingerprint
    weights = load_file(copy / "model.safetensors")
    weights["text_projection.weight"][3, 5] += 1e-3
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    changed = load(copy).fingerprint
    assert [line.split()[0] for line in changed.difference(backbone.fingerprint)] == ["weights"]


def test_shards_load_and_have_a_hash(load: Load, backbone: Backbone, reference: CLIPModel, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    reference.save_pretrained(copy, max_shard_size="60KB")
    assert len(list(copy.glob("model-*.safetensors"))) > 1
    sharded = load(copy)
    assert len(sharded.fingerprint.weights) == 64
    np.testing.assert_allclose(
        sharded.encode_texts(["a"])[0].words, backbone.encode_texts(["a"])[0].words, rtol=1.3e-6, atol=1e-5
    )


@pytest.mark.parametrize("num_files", [1, 2])
def test_weights_may_be_pickled_as_tensors(backbone: Backbone, copy: Path, num_files: int) -> None:
    weights = load_file(copy / "model.safetensors")
    # Old files contain a buffer that newer models compute.
    weights["text_model.embeddings.position_ids"] = torch.arange(16)[None]
    (copy / "model.safetensors").unlink()
    _pickle(copy, weights, num_files)
    pickled = load_backbone(f"local-dir:{copy}")
    assert len(pickled.fingerprint.weights) == 64
    np.testing.assert_allclose(
        pickled.encode_texts(["a"])[0].words, backbone.encode_texts(["a"])[0].words, rtol=1.3e-6, atol=1e-5
    )


def _pickle(folder: Path, weights: dict[str, torch.Tensor], num_files: int) -> None:
    if num_files == 1:
        torch.save(weights, folder / "pytorch_model.bin")
        return
    names = list(weights)
    file_of = {}
    for number in range(num_files):
        part, file = names[number::num_files], f"pytorch_model-{number + 1:05}-of-{num_files:05}.bin"
        torch.save({name: weights[name] for name in part}, folder / file)
        file_of.update(dict.fromkeys(part, file))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of}))


def test_code_in_a_pickle_is_not_run(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({"text_projection.weight": Prank(copy / "ran")}, copy / "pytorch_model.bin")
    with pytest.raises(BadModel, match=r"model\.safetensors|as a CLIP"):
        load_backbone(f"local-dir:{copy}")
    assert not (copy / "ran").exists()
    torch.load(copy / "pytorch_model.bin", weights_only=False)
    assert (copy / "ran").exists()


def test_float16_weights_compute_in_float32(load: Load, reference: CLIPModel, copy: Path) -> None:
    halves = {name: weight.half() for name, weight in load_file(copy / "model.safetensors").items()}
    save_file(halves, copy / "model.safetensors", {"format": "pt"})
    assert load(copy).encode_texts(["a"])[0].words.dtype == np.float32


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_an_unavailable_device(tiny_clip: Path, device: str) -> None:
    with pytest.raises(BadSetting, match=device):
        load_backbone(f"local-dir:{tiny_clip}", device=device)


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


def test_missing_files(load: Load, copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "elsewhere")
    with pytest.raises(BadModel, match=r"model\.safetensors"):
        load(copy)
    (copy / "elsewhere").rename(copy / "model.safetensors")
    for path in (*copy.glob("tokenizer*"), *copy.glob("vocab*"), *copy.glob("merges*")):
        path.unlink()
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        load(copy)


def test_truncated_and_missing_weights(load: Load, copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:5000])
    with pytest.raises(BadModel, match=r"model\.safetensors|as a CLIP"):
        load(copy)
    (copy / "model.safetensors").write_bytes(whole)
    weights = load_file(copy / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadModel, match=r" 1 weights.*'visual_projection"):
        load(copy)


def test_a_damaged_tokenizer(load: Load, copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(BadModel, match=r"tokenizer"):
        load(copy)


def test_a_crop_that_does_not_fit_the_encoder(load: Load, copy: Path) -> None:
    _edit(copy / "preprocessor_config.json", lambda settings: settings.update(crop_size={"height": 24, "width": 24}))
    with pytest.raises(BadModel, match=r"\(24, 24\), .* \(32, 32\)"):
        load(copy)


def test_an_old_config_pools_at_eos_too(load: Load, backbone: Backbone, copy: Path) -> None:
    _edit(copy / "config.json", lambda settings: settings["text_config"].update(eos_token_id=2, bos_token_id=0))
    old = load(copy)
    reference = CLIPModel.from_pretrained(copy).eval()
    tokenizer = CLIPTokenizer.from_pretrained(copy)
    for text, found in zip(TEXTS, old.encode_texts(TEXTS), strict=True):
        tokens = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():  # transformers pools at the largest id here, which [EOS] has
            expected = reference.get_text_features(**tokens).pooler_output[0]
        np.testing.assert_allclose(found.sentence, expected, atol=1e-5, rtol=1e-5)


def test_an_old_config_without_projection_dim_in_its_parts(load: Load, backbone: Backbone, copy: Path) -> None:
    def forget(settings: dict[str, Any]) -> None:
        for part in ("text_config", "vision_config"):
            settings[part].pop("projection_dim", None)

    _edit(copy / "config.json", forget)
    old = load(copy)
    assert old.fingerprint == backbone.fingerprint
    np.testing.assert_allclose(
        old.encode_texts(["a"])[0].sentence, backbone.encode_texts(["a"])[0].sentence, rtol=1.3e-6, atol=1e-5
    )


def test_a_config_with_another_eos(load: Load, copy: Path) -> None:
    _edit(copy / "config.json", lambda settings: settings["text_config"].update(eos_token_id=49407))
    with pytest.raises(BadModel, match=r"eos_token_id .* 49407, .* \d+"):
        load(copy)
