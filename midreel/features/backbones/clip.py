"""CLIP in the Hugging Face format: any size, any weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer

from midreel.errors import BadModel
from midreel.features.backbones.base import Fingerprint, hash_of_files, weight_files
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

_LEGACY_EOS = 2  # configs older than transformers 4.31 say so; the model then pools at the largest token id


class Clip(Encoders):
    """The image and the text encoder of a CLIP."""

    def __init__(
        self,
        model: CLIPModel,
        tokenizer: CLIPTokenizer,
        preprocessing: Preprocessing,
        *,
        weights: str,
        source: str,
        device: str,
    ) -> None:
        config: Any = model.config
        fingerprint = Fingerprint(
            backbone=architecture("clip", config),
            weights=weights,
            vocabulary=hash_of_vocabulary(tokenizer.get_vocab()),
            context_length=config.text_config.max_position_embeddings,
            width=config.projection_dim,
            word_width=config.text_config.hidden_size,
            **vars(preprocessing),
            source=source,
        )
        super().__init__(model, preprocessing, fingerprint, device=device)
        self._tokenizer = tokenizer

    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        return self._model.visual_projection(self._model.vision_model(pixels).pooler_output)

    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            padding_side="right",
            truncation=True,  # before [EOS] is put at the end, so it stays
            max_length=self._fingerprint.context_length,
            return_tensors="pt",
        ).to(self._device)
        lengths = tokens["attention_mask"].sum(1)
        hidden = self._model.text_model(**tokens).last_hidden_state
        # [EOS] is the last real word. The model's own pooling takes the first [EOS] instead, which is another one if
        # someone writes "<|endoftext|>" into a sentence, and a wrong one if the config names a wrong id.
        last = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        return Encoded(words=hidden, lengths=lengths, sentences=self._model.text_projection(last))


def load(folder: Path, *, device: str, source: str) -> Clip:
    """The CLIP in `folder`, after checks that its files fit each other."""
    preprocessing = Preprocessing.read(folder)
    model: CLIPModel = load_model(folder, CLIPModel, "CLIP")
    tokenizer = _load_tokenizer(folder)
    expect_fit(folder, model.config, len(tokenizer), preprocessing)
    _expect_pooling(folder, model.config, tokenizer)
    weights = hash_of_files(weight_files(folder))
    return Clip(model, tokenizer, preprocessing, weights=weights, source=source, device=device)


def _load_tokenizer(folder: Path) -> CLIPTokenizer:
    # Without its files, transformers would make a tokenizer that knows no word.
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        raise BadModel(f"{folder} holds no tokenizer.json, expected one of CLIP; download the folder as a whole")
    with reading_tokenizer(folder):
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)


def _expect_pooling(folder: Path, config: Any, tokenizer: CLIPTokenizer) -> None:
    first, *_, last = tokenizer("a")["input_ids"]
    if (first, last) != (tokenizer.bos_token_id, tokenizer.eos_token_id):
        raise BadModel(f"{folder}: the tokenizer puts no [SOS] and [EOS] around a text; use the one of CLIP")
    named = config.text_config.eos_token_id
    if named not in (_LEGACY_EOS, tokenizer.eos_token_id):
        raise BadModel(
            f"{folder}: config.json says that [EOS] is {named}, the tokenizer says {tokenizer.eos_token_id}, so the "
            f"model was pooled at another word; set text_config.eos_token_id"
        )
