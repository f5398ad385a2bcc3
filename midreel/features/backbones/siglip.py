"""SigLIP in the Hugging Face format, and SigLIP 2 with a fixed image size, which has the same architecture."""

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
from midreel.features.backbones.base import read_json
from midreel.features.backbones.hugging_face import Encoded, Encoders, Pretrained, reading_tokenizer

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LOWER_CASED = ("GemmaTokenizer", "GemmaTokenizerFast", "Siglip2Tokenizer")


class Words:
    """The tokenizer of a SigLIP: token ids up to [EOS], padded to one length.

    In transformers, the tokenizer of SigLIP needs SentencePiece, and the one of SigLIP 2 depends on the class in the
    config. This class only needs tokenizer.json, and normalises texts as those classes do.

    Args:
        folder: The folder with tokenizer.json and tokenizer_config.json.
        length: The number of tokens to which texts are truncated and padded.

    Raises:
        BadModel: If the files are missing or damaged.
    """

    def __init__(self, folder: Path, length: int) -> None:
        if not (folder / "tokenizer.json").exists():
            raise BadModel(f"{folder} has no tokenizer.json, expected the one of SigLIP. Download the whole folder.")
        self._settings = read_json(folder / "tokenizer_config.json")
        with reading_tokenizer(folder):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # "<eos>" in a text is not [EOS]
        self._eos, self._pad = self._id_of("eos_token", folder), self._id_of("pad_token", folder)
        self._length = length

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        """The tokens and their ids."""
        return self._tokenizer.get_vocab()

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, with [EOS] at the end. A long text is truncated before [EOS]."""
        ids = self._tokenizer.encode(self._normalise(text), add_special_tokens=False).ids
        return [*ids[: self._length - 1], self._eos]

    def padded(self, ids: Sequence[int]) -> list[int]:
        """Return token ids, padded to the length of all texts."""
        return [*ids, *[self._pad] * (self._length - len(ids))]

    def _normalise(self, text: str) -> str:
        """Normalise a text as in training.

        SigLIP was trained on lower case without punctuation, SigLIP 2 on lower case. Published folders of SigLIP 2 name
        the tokenizer class of Gemma, which does not change the case. Texts of other classes are not changed.
        """
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
                f"{folder / 'tokenizer_config.json'}: {role} is {token!r}, expected a token of tokenizer.json. "
                f"Download both files again."
            )
        return found


class Siglip(Encoders):
    """The image and text encoder of a SigLIP.

    Args:
        pretrained: The model.
        words: Its tokenizer.
        source: Where the model was loaded from, for the fingerprint.
        device: The device of torch.
    """

    def __init__(self, pretrained: Pretrained, words: Words, *, source: str, device: str) -> None:
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
    words = Words(folder, pretrained.config.text_config.max_position_embeddings)
    pretrained.expect_vocabulary(len(words))
    _expect_joint_space(folder, pretrained.config)
    return Siglip(pretrained, words, source=source, device=device)


def _expect_joint_space(folder: Path, config: Any) -> None:
    """Raise BadModel unless texts and images are projected into one space."""
    texts, images = config.text_config.projection_size, config.vision_config.hidden_size
    pooled = getattr(config.vision_config, "vision_use_head", True)
    if texts != images or not pooled:
        raise BadModel(
            f"{folder}: the width of texts is {texts} and the width of images {images if pooled else None}, expected "
            f"the same. Use a SigLIP with both heads."
        )
