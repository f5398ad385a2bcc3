import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from midreel.errors import BadModel
from midreel.features.backbones.sentences import SentenceEncoder
from tests.features.tiny_offline import save_sentence_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_sentence_encoder(tmp_path / "encoder")


def test_words_and_sentences_are_those_of_transformers(folder: Path) -> None:
    texts = ["a red ball", "a white cockatoo on the tree and a dog", "Fire"]
    found = SentenceEncoder(folder, threads=1).encode(texts)
    model = BertModel.from_pretrained(folder).eval()
    for text, features in zip(texts, found, strict=True):
        ids = SentenceEncoder(folder, threads=1)._tokenizer.encode(text).ids
        with torch.no_grad():
            expected = model(torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(features.words, expected, atol=1e-5)
        mean = expected.mean(0)
        np.testing.assert_allclose(features.sentence, mean / np.linalg.norm(mean), atol=1e-5)


def test_a_batch_does_not_change_a_text(folder: Path) -> None:
    encoder = SentenceEncoder(folder, threads=1)
    (short,) = encoder.encode(["a dog"])
    beside = encoder.encode(["a dog", "a red ball and a white cockatoo on the tree"])[0]
    np.testing.assert_allclose(short.sentence, beside.sentence, atol=1e-6)
    assert encoder.encode([]) == []


def test_a_long_text_is_truncated(folder: Path) -> None:
    (found,) = SentenceEncoder(folder, threads=1).encode(["dog " * 40])
    assert len(found.words) == 12


def test_another_architecture_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "roberta"}))
    with pytest.raises(BadModel, match="roberta"):
        SentenceEncoder(folder)


def test_a_missing_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadModel):
        SentenceEncoder(folder)
