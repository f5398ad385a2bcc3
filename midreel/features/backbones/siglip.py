"""SigLIP in the Hugging Face format, and SigLIP 2 with a fixed image size, which has the same architecture."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import SiglipModel

from midreel.features.backbones.folder import expect_joint_space
from midreel.features.backbones.hugging_face import Encoded, Encoders, Pretrained
from midreel.features.backbones.words import SiglipWords


class Siglip(Encoders):
    """The image and text encoder of a SigLIP.

    Args:
        pretrained: The model.
        words: Its tokenizer.
        source: Where the model was loaded from, for the fingerprint.
        device: The device of torch.
    """

    def __init__(self, pretrained: Pretrained, words: SiglipWords, *, source: str, device: str) -> None:
        super().__init__(
            pretrained,
            kind="siglip",
            width=pretrained.config.vision_config.hidden_size,
            vocabulary=words.vocabulary,
            source=source,
            device=device,
        )
        self._words = words

    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        return self._model.vision_model(pixels).pooler_output

    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        ids = [self._words.ids(text) for text in texts]
        # No attention mask: the encoder was trained with padding, and pools at the last padding token.
        padded = torch.tensor([self._words.padded(row) for row in ids], device=self._device)
        encoded = self._model.text_model(padded)
        return Encoded(
            words=encoded.last_hidden_state,
            lengths=torch.tensor([len(row) for row in ids]),
            sentences=encoded.pooler_output,
        )


def load(folder: Path, *, device: str, source: str) -> Siglip:
    """Load the SigLIP in a folder. Raise BadModel if its files do not fit together. See `load_backbone`.

    Args:
        folder: A folder in the Hugging Face format.
        device: The torch device.
        source: The name that the user gave, for the fingerprint.
    """
    pretrained = Pretrained.load(folder, SiglipModel, "SigLIP")
    words = SiglipWords(folder, pretrained.config.text_config.max_position_embeddings)
    pretrained.expect_vocabulary(len(words))
    config = pretrained.config
    expect_joint_space(folder, config.text_config.to_dict(), config.vision_config.to_dict())
    return Siglip(pretrained, words, source=source, device=device)
