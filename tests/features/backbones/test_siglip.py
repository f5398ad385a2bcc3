import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast, Siglip2Tokenizer, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from midreel.errors import BadModel
from midreel.features import Backbone, load_backbone
from tests.features.tiny_siglip import CONTEXT_LENGTH, save_tiny_siglip

TEXTS = ["the red ball", "a boat", "b", "the red ball rises then falls", "the " * 40]
EOS, PAD = 1, 1


Load = Callable[[Path], Backbone]


@pytest.fixture(scope="module", params=["onnx", "torch"])
def load(request: pytest.FixtureRequest) -> Load:
    return lambda folder: load_backbone(f"local-dir:{folder}", engine=request.param)


@pytest.fixture(scope="module")
def backbone(load: Load, folder: Path) -> Backbone:
    return load(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_siglip(tmp_path_factory.mktemp("tiny") / "siglip")


@pytest.fixture(scope="module")
def second_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_siglip(tmp_path_factory.mktemp("tiny") / "siglip2", second=True)


@pytest.fixture(scope="module")
def reference(folder: Path) -> SiglipModel:
    return SiglipModel.from_pretrained(folder).eval()


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def _edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


@torch.no_grad()
def test_words_and_sentences_equal_those_of_transformers(
    backbone: Backbone, reference: SiglipModel, folder: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for text, found in zip(TEXTS, backbone.encode_texts(TEXTS), strict=True):
        ids = tokenizer(text, padding="max_length", truncation=True, max_length=CONTEXT_LENGTH, return_tensors="pt")[
            "input_ids"
        ]
        expected = reference.get_text_features(ids)
        length = ids[0].tolist().index(EOS) + 1
        np.testing.assert_allclose(found.words, expected.last_hidden_state[0, :length], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(found.sentence, expected.pooler_output[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_sentence_is_pooled_at_the_last_padding(backbone: Backbone, reference: SiglipModel) -> None:
    found = backbone.encode_texts(["the red ball"])[0]
    ids = torch.tensor([[30, 31, 32, EOS, *[PAD] * (CONTEXT_LENGTH - 4)]])
    hidden = reference.text_model(ids).last_hidden_state[0]
    np.testing.assert_allclose(found.sentence, reference.text_model.head(hidden[-1]), rtol=1.3e-6, atol=1e-5)
    assert not np.allclose(found.sentence, reference.text_model.head(hidden[3]), atol=1e-3)


def test_a_text_does_not_depend_on_its_batch(backbone: Backbone) -> None:
    together = backbone.encode_texts(TEXTS)
    for batch in ([TEXTS[0]], TEXTS[:2], TEXTS[::-1]):
        for text, found in zip(batch, backbone.encode_texts(batch), strict=True):
            expected = together[TEXTS.index(text)]
            np.testing.assert_allclose(found.words, expected.words, atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(found.sentence, expected.sentence, atol=1e-5, rtol=1e-5)


def test_words_go_up_to_eos_and_long_texts_keep_it(backbone: Backbone) -> None:
    ball, empty, long = backbone.encode_texts(["the red ball", "", "the " * 40])
    assert [len(text.words) for text in (ball, empty, long)] == [4, 1, CONTEXT_LENGTH]
    cut = backbone.encode_texts(["the " * (CONTEXT_LENGTH - 1)])[0]
    np.testing.assert_allclose(long.words, cut.words, rtol=1.3e-6, atol=1e-5)


def _same(backbone: Backbone, one: str, other: str) -> bool:
    first, second = backbone.encode_texts([one, other])
    return np.array_equal(first.words, second.words)


def test_siglip_reads_lower_case_without_punctuation(backbone: Backbone) -> None:
    assert _same(backbone, "  The RED-\tball!? ", "the red ball")
    assert _same(backbone, "The red, red ball.", "the red red ball")
    assert _same(backbone, "the red</s>ball", "the redsball")
    assert not _same(backbone, "the red ball", "the redball")


def test_a_config_may_keep_upper_case(load: Load, copy: Path) -> None:
    _edit(copy / "tokenizer_config.json", lambda settings: settings.update(do_lower_case=False))
    kept = load(copy)
    assert not _same(kept, "THE ball", "the ball")
    assert _same(kept, "the, ball", "the ball")


def test_a_tokenizer_of_an_unknown_class_gets_the_original_text(load: Load, copy: Path) -> None:
    _edit(copy / "tokenizer_config.json", lambda settings: settings.update(tokenizer_class="PreTrainedTokenizerFast"))
    plain = load(copy)
    assert not _same(plain, "THE ball", "the ball")
    assert not _same(plain, "the, ball", "the ball")


@torch.no_grad()
@pytest.mark.parametrize("named", ["Siglip2Tokenizer", "GemmaTokenizer"])
def test_siglip2_reads_lower_case_as_transformers_does(
    load: Load, second_folder: Path, tmp_path: Path, named: str
) -> None:
    copy = Path(shutil.copytree(second_folder, tmp_path / "copy"))
    _edit(copy / "tokenizer_config.json", lambda settings: settings.update(tokenizer_class=named))
    tokenizer, reference = Siglip2Tokenizer.from_pretrained(second_folder), SiglipModel.from_pretrained(copy).eval()
    texts = ["The RED ball", "a boat, red"]
    for text, found in zip(texts, load(copy).encode_texts(texts), strict=True):
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        padded = ids + [tokenizer.pad_token_id] * (CONTEXT_LENGTH - len(ids))
        expected = reference.get_text_features(torch.tensor([padded]))
        np.testing.assert_allclose(found.words, expected.last_hidden_state[0, : len(ids)], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(found.sentence, expected.pooler_output[0], atol=1e-5, rtol=1e-5)


def test_eos_in_a_text_does_not_end_it(load: Load, second_folder: Path) -> None:
    second = load(second_folder)
    assert len(second.encode_texts(["a <eos> b"])[0].words) > len(second.encode_texts(["a b"])[0].words) + 1


def test_images_equal_those_of_transformers(backbone: Backbone, reference: SiglipModel, folder: Path) -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*size, 3), np.uint8) for size in ((48, 64), (90, 40), (32, 32))]
    processor = SiglipImageProcessorPil.from_pretrained(folder)
    with torch.no_grad():
        expected = reference.get_image_features(processor(images, return_tensors="pt")["pixel_values"]).pooler_output
    found = backbone.encode_images(images)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    for image, row in zip(images, found, strict=True):
        np.testing.assert_allclose(backbone.encode_images([image])[0], row, atol=1e-5, rtol=1e-5)


def test_empty_input(backbone: Backbone) -> None:
    assert backbone.encode_images([]).shape == (0, 48)
    assert backbone.encode_texts([]) == []


def test_the_fingerprint(backbone: Backbone, folder: Path) -> None:
    found = backbone.fingerprint
    assert found.backbone == (
        "siglip; vision 2x48, 4 heads, gelu_pytorch_tanh, eps 1e-06, patch 8; "
        "text 2x32, 4 heads, gelu_pytorch_tanh, eps 1e-06"
    )
    assert (found.width, found.word_width, found.context_length) == (48, 32, CONTEXT_LENGTH)
    assert (found.image_size, found.crop) == ((32, 32), (32, 32))
    assert len(found.weights) == len(found.vocabulary or "") == 64
    assert isinstance(backbone, Backbone)
    assert backbone.window == 1


def test_loading_prints_nothing(load: Load, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(folder)
    assert capfd.readouterr() == ("", "")


def test_a_missing_tokenizer(load: Load, copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        load(copy)


def test_a_damaged_tokenizer(load: Load, copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(BadModel, match="tokenizer"):
        load(copy)


@pytest.mark.parametrize("change", [{"pad_token": "<nothing>"}, {"pad_token": None}, {"pad_token": {"content": 3}}])
def test_an_unknown_padding_token(load: Load, copy: Path, change: dict[str, object]) -> None:
    _edit(copy / "tokenizer_config.json", lambda settings: settings.update(change))
    with pytest.raises(BadModel, match="pad_token is"):
        load(copy)


def test_special_tokens_may_be_objects(load: Load, copy: Path, backbone: Backbone) -> None:
    _edit(copy / "tokenizer_config.json", lambda settings: settings.update(eos_token={"content": "</s>"}))
    described = load(copy)
    assert np.array_equal(described.encode_texts(["a"])[0].words, backbone.encode_texts(["a"])[0].words)


def test_a_crop_that_does_not_fit_the_encoder(load: Load, copy: Path) -> None:
    _edit(copy / "preprocessor_config.json", lambda settings: settings.update(size={"height": 24, "width": 24}))
    with pytest.raises(BadModel, match=r"\(24, 24\), .* \(32, 32\)"):
        load(copy)


def test_a_model_without_a_joint_space(load: Load, reference: SiglipModel, copy: Path) -> None:
    config = deepcopy(reference.config)
    config.vision_config.vision_use_head = False
    SiglipModel(config).save_pretrained(copy)
    with pytest.raises(BadModel, match=r"is 48 .* None"):
        load(copy)
