"""CLIP in the Hugging Face format, of any size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer

from midreel.errors import BadModel
from midreel.features.backbones.hugging_face import Encoded, Encoders, Pretrained
from midreel.features.backbones.words import expect_clip_eos, reading_tokenizer


class Clip(Encoders):
    """The image and text encoder of a CLIP.

    Args:
        pretrained: The model.
        tokenizer: Its tokenizer.
        source: Where the model was loaded from, for the fingerprint.
        device: The device of torch.
        kind: The kind of model, for the fingerprint: "clip", or "metaclip_2", which computes the same.
    """

    def __init__(self, pretrained: Pretrained, tokenizer: Any, *, source: str, device: str, kind: str = "clip") -> None:
        super().__init__(
            pretrained,
            kind=kind,
            width=pretrained.config.projection_dim,
            vocabulary=tokenizer.get_vocab(),
            source=source,
            device=device,
        )
        self._tokenizer = tokenizer

    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        return self._model.visual_projection(self._model.vision_model(pixels).pooler_output)

    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            padding_side="right",
            truncation=True,  # keeps [EOS], which is appended after the text is truncated
            max_length=self._fingerprint.context_length,
            return_tensors="pt",
        ).to(self._device)
        lengths = tokens["attention_mask"].sum(1)
        hidden = self._model.text_model(**tokens).last_hidden_state
        # [EOS] is the last word. The pooling of transformers takes the first [EOS] instead. That is another word if the
        # text contains "<|endoftext|>", and a wrong one if the config has a wrong id.
        last = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        return Encoded(words=hidden, lengths=lengths, sentences=self._model.text_projection(last))


def load(folder: Path, *, device: str, source: str) -> Clip:
    """Load the CLIP in a folder. Raise BadModel if its files do not fit together. See `load_backbone`.

    Args:
        folder: A folder in the Hugging Face format.
        device: The torch device.
        source: The name that the user gave, for the fingerprint.
    """
    pretrained = Pretrained.load(folder, CLIPModel, "CLIP")
    tokenizer = _load_tokenizer(folder)
    pretrained.expect_vocabulary(len(tokenizer))
    expect_clip_eos(
        folder,
        pretrained.config.text_config.eos_token_id,
        tokenizer("a")["input_ids"],
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    )
    return Clip(pretrained, tokenizer, source=source, device=device)


def _load_tokenizer(folder: Path) -> CLIPTokenizer:
    # Without these files, transformers returns an empty tokenizer instead of an error.
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        raise BadModel(f"{folder} has no tokenizer.json, expected the one of CLIP. Download the whole folder.")
    with reading_tokenizer(folder):
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)
