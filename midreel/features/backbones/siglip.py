"""SigLIP in the Hugging Face format, and those of SigLIP 2 that take images of one size, which are the same model."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor
from transformers import SiglipModel

from midreel.errors import BadModel
from midreel.features.backbones.base import Fingerprint, hash_of_files, read_json, weight_files
from midreel.features.backbones.hugging_face import (
    Encoded,
    Encoders,
    architecture,
    expect_fit,
    hash_of_vocabulary,
    load_model,
    reading_tokenizer,
)
from midreel.features.backbones.preprocess import Preprocessing

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LOWER_CASED = ("GemmaTokenizer", "GemmaTokenizerFast", "Siglip2Tokenizer")


class Words:
    """Texts as the token ids that SigLIP was trained on: written as then, [EOS] at the end, padded to one length.

    transformers' tokenizer of SigLIP needs SentencePiece and that of SigLIP 2 depends on which class its config names;
    the tokenizer.json beside them needs neither. What the classes do to a text before they cut it is done here.
    """

    def __init__(self, folder: Path, length: int) -> None:
        if not (folder / "tokenizer.json").exists():
            raise BadModel(f"{folder} holds no tokenizer.json, expected one; download the folder as a whole")
        self._settings = read_json(folder / "tokenizer_config.json")
        with reading_tokenizer(folder):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # who writes "<eos>" into a sentence does not end it
        self._eos, self._pad = self._id_of("eos_token", folder), self._id_of("pad_token", folder)
        self._length = length

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    def ids(self, text: str) -> list[int]:
        """Up to and including [EOS], which a text that is too long keeps."""
        ids = self._tokenizer.encode(self._as_trained(text), add_special_tokens=False).ids
        return [*ids[: self._length - 1], self._eos]

    def padded(self, ids: Sequence[int]) -> list[int]:
        return [*ids, *[self._pad] * (self._length - len(ids))]

    def _as_trained(self, text: str) -> str:
        """SigLIP: in small letters and without punctuation. SigLIP 2: in small letters, which the tokenizer of Gemma,
        named by its published checkpoints, would not do. Any other class: as it is."""
        name = self._settings.get("tokenizer_class")
        if name == "SiglipTokenizer":
            text = text.lower() if self._settings.get("do_lower_case", True) else text
            return " ".join(text.translate(_WITHOUT_PUNCTUATION).split())
        return text.lower() if name in _LOWER_CASED else text

    def _id_of(self, role: str, folder: Path) -> int:
        named: Any = self._settings.get(role)
        token = named.get("content") if isinstance(named, dict) else named
        found = self._tokenizer.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise BadModel(
                f"{folder / 'tokenizer_config.json'} says that {role} is {token!r}, expected a token of "
                f"tokenizer.json; download the two again"
            )
        return found


class Siglip(Encoders):
    """The image and the text encoder of a SigLIP."""

    def __init__(
        self,
        model: SiglipModel,
        words: Words,
        preprocessing: Preprocessing,
        *,
        weights: str,
        source: str,
        device: str,
    ) -> None:
        config: Any = model.config
        fingerprint = Fingerprint(
            backbone=architecture("siglip", config),
            weights=weights,
            vocabulary=hash_of_vocabulary(words.vocabulary),
            context_length=config.text_config.max_position_embeddings,
            width=config.vision_config.hidden_size,
            word_width=config.text_config.hidden_size,
            **vars(preprocessing),
            source=source,
        )
        super().__init__(model, preprocessing, fingerprint, device=device)
        self._words = words

    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        return self._model.vision_model(pixels).pooler_output

    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        ids = [self._words.ids(text) for text in texts]
        # No mask: the encoder was trained to read the padding as well, and pools at the last of it.
        padded = torch.tensor([self._words.padded(row) for row in ids], device=self._device)
        encoded = self._model.text_model(padded)
        return Encoded(
            words=encoded.last_hidden_state,
            lengths=torch.tensor([len(row) for row in ids]),
            sentences=encoded.pooler_output,
        )


def load(folder: Path, *, device: str, source: str) -> Siglip:
    """The SigLIP in `folder`, after checks that its files fit each other."""
    preprocessing = Preprocessing.read(folder)
    model: SiglipModel = load_model(folder, SiglipModel, "SigLIP")
    config: Any = model.config
    words = Words(folder, config.text_config.max_position_embeddings)
    expect_fit(folder, config, len(words), preprocessing)
    _expect_joint_space(folder, config)
    weights = hash_of_files(weight_files(folder))
    return Siglip(model, words, preprocessing, weights=weights, source=source, device=device)


def _expect_joint_space(folder: Path, config: Any) -> None:
    texts, images = config.text_config.projection_size, config.vision_config.hidden_size
    pooled = getattr(config.vision_config, "vision_use_head", True)
    if texts != images or not pooled:
        raise BadModel(
            f"{folder}: texts are vectors of {texts} numbers and images of {images if pooled else None}, expected one "
            f"space for both; use a SigLIP with both of its heads"
        )
