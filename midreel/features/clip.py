"""CLIP in the Hugging Face format: any size, any weights. The only file that imports transformers."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer
from transformers.utils import logging

from midreel.errors import BadModelFolder, BadSetting
from midreel.features.backbone import Fingerprint, Image, weight_files
from midreel.features.preprocess import Preprocessing
from midreel.types import TextFeatures

_LEGACY_EOS = 2  # configs older than transformers 4.31 say so; the model then pools at the largest token id


class Clip:
    """The image and the text encoder of a CLIP, frozen, computing in float32."""

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
        self._model = _on_device(model.eval().requires_grad_(False), device)
        self._tokenizer = tokenizer
        self._preprocessing = preprocessing
        self._device = device
        config: Any = model.config
        text, vision = config.text_config, config.vision_config
        self._fingerprint = Fingerprint(
            backbone=f"clip, vision {vision.num_hidden_layers}x{vision.hidden_size} patch {vision.patch_size}, "
            f"text {text.num_hidden_layers}x{text.hidden_size}",
            weights=weights,
            vocabulary=_hash_of_vocabulary(tokenizer),
            context_length=text.max_position_embeddings,
            width=config.projection_dim,
            word_width=text.hidden_size,
            **vars(preprocessing),
            source=source,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[Tensor, "3 H W"]:
        return self._preprocessing.prepare(image)

    # no_grad rather than inference_mode: features are later fed to layers that learn, which inference tensors refuse.
    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        normalised = self._preprocessing.normalise(pixels.to(self._device))
        return self._model.visual_projection(self._model.vision_model(normalised).pooler_output).cpu()

    def encode_images(self, images: Sequence[Image]) -> Float[Tensor, "N E"]:
        if not images:
            return torch.empty(0, self._fingerprint.width)
        return self.encode_pixels(torch.stack([self.prepare(image) for image in images]))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        if not texts:
            return []
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            padding_side="right",
            truncation=True,  # before [EOS] is put at the end, so it stays
            max_length=self._fingerprint.context_length,
            return_tensors="pt",
        )
        lengths = tokens["attention_mask"].sum(1)
        hidden = self._model.text_model(**tokens.to(self._device)).last_hidden_state
        # [EOS] is the last real word. The model's own pooling takes the first [EOS] instead, which is another one if
        # someone writes "<|endoftext|>" into a sentence, and a wrong one if the config names a wrong id.
        last = hidden[torch.arange(len(hidden), device=hidden.device), lengths.to(hidden.device) - 1]
        sentences = self._model.text_projection(last).cpu()
        return [
            # A copy, so that keeping one sentence does not keep its whole batch.
            TextFeatures(words=words[:length].clone(), sentence=sentence.clone())
            for words, sentence, length in zip(hidden.cpu(), sentences, lengths.tolist(), strict=True)
        ]


def load(folder: Path, *, device: str, source: str) -> Clip:
    """The CLIP in `folder`, after checks that its files fit each other: transformers fills gaps with random weights."""
    preprocessing = Preprocessing.read(folder)
    model = _load_model(folder)
    tokenizer = _load_tokenizer(folder)
    _expect_fit(folder, model, tokenizer, preprocessing)
    return Clip(model, tokenizer, preprocessing, weights=_hash_of_files(folder), source=source, device=device)


def _on_device(model: Any, device: str) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise BadSetting(f"the device {device!r} cannot be used ({error}); choose cpu, or one that is here") from error


def _load_model(folder: Path) -> CLIPModel:
    if not weight_files(folder):
        raise BadModelFolder(f"{folder} holds no weights, expected model.safetensors; download the folder as a whole")
    try:
        with _no_progress_bar():
            loaded: Any = CLIPModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:
        # transformers passes on whatever its config, safetensors or torch raise.
        raise BadModelFolder(
            f"{folder} cannot be loaded as a CLIP ({type(error).__name__}: {error}); download it again"
        ) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadModelFolder(
            f"{weight_files(folder)[0]} lacks {len(missing)} weights that config.json asks for, such as "
            f"{missing[0]!r}; keep the two together"
        )
    return model


def _load_tokenizer(folder: Path) -> CLIPTokenizer:
    # Without its files, transformers would make a tokenizer that knows no word.
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        raise BadModelFolder(f"{folder} holds no tokenizer.json, expected one of CLIP; download the folder as a whole")
    try:
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise BadModelFolder(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}); download it again"
        ) from error


def _expect_fit(folder: Path, model: CLIPModel, tokenizer: CLIPTokenizer, preprocessing: Preprocessing) -> None:
    config: Any = model.config
    size, text = config.vision_config.image_size, config.text_config
    if preprocessing.crop != (size, size):
        raise BadModelFolder(
            f"{folder}: images are cropped to {preprocessing.crop}, the encoder takes {(size, size)}; set crop_size"
        )
    if len(tokenizer) > text.vocab_size:
        raise BadModelFolder(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the text encoder knows {text.vocab_size}; "
            f"keep the two together"
        )
    first, *_, last = tokenizer("a")["input_ids"]
    if (first, last) != (tokenizer.bos_token_id, tokenizer.eos_token_id):
        raise BadModelFolder(f"{folder}: the tokenizer puts no [SOS] and [EOS] around a text; use the one of CLIP")
    if text.eos_token_id not in (_LEGACY_EOS, tokenizer.eos_token_id):
        raise BadModelFolder(
            f"{folder}: config.json says that [EOS] is {text.eos_token_id}, the tokenizer says "
            f"{tokenizer.eos_token_id}, so the model was pooled at another word; set text_config.eos_token_id"
        )


def _hash_of_files(folder: Path) -> str:
    whole = hashlib.sha256()
    files = weight_files(folder)
    for path in files:
        with path.open("rb") as file:
            if len(files) == 1:
                return hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _hash_of_vocabulary(tokenizer: CLIPTokenizer) -> str:
    """Of the tokens in order, which imply the merges. Their files differ from one version to the next, they do not."""
    vocabulary = tokenizer.get_vocab()
    return hashlib.sha256(json.dumps(sorted(vocabulary, key=vocabulary.__getitem__)).encode()).hexdigest()


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Loading takes a second, and stderr belongs to whoever called."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
