"""The tokenizers of CLIP and SigLIP: from a text to token ids, as in training, without transformers."""

import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from midreel.errors import BadModel
from midreel.features.backbones.base import read_json

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LOWER_CASED = ("GemmaTokenizer", "GemmaTokenizerFast", "Siglip2Tokenizer")
# The words that CLIP was trained on: its markers, the endings of contractions, letters, single digits, other signs.
_CLIP_WORDS = r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
_SOS, _EOS = "<|startoftext|>", "<|endoftext|>"
# The id of [EOS] in configs older than transformers 4.31. The model then pools at the largest token id.
_LEGACY_EOS = 2


@contextmanager
def reading_tokenizer(folder: Path) -> Iterator[None]:
    """Turn the errors of transformers and tokenizers, which have many classes, into BadModel."""
    try:
        yield
    except BadModel:
        raise
    except Exception as error:
        raise BadModel(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}). Download it again."
        ) from error


def expect_clip_eos(folder: Path, configured: Any, ids: Sequence[int], sos: Any, eos: Any) -> None:
    """Raise BadModel unless the tokenizer of a CLIP appends the [EOS] at which the model was trained to pool.

    Args:
        folder: The folder, for messages.
        configured: The id of [EOS] in config.json.
        ids: The token ids of a text.
        sos: The id of [SOS] in the tokenizer.
        eos: The id of [EOS] in the tokenizer.
    """
    if (ids[0], ids[-1]) != (sos, eos):
        raise BadModel(f"{folder}: the tokenizer does not add [SOS] and [EOS] to texts. Use the tokenizer of CLIP.")
    if configured not in (_LEGACY_EOS, eos):
        raise BadModel(
            f"{folder}: text_config.eos_token_id in config.json is {configured}, but the tokenizer has {eos}. Set both "
            f"to the id that the model was trained with."
        )


class ClipWords:
    """The tokenizer of a CLIP: token ids from [SOS] to [EOS].

    It reads tokenizer.json, or vocab.json and merges.txt. The steps around the vocabulary are those of CLIP, whatever
    the file says, as in transformers.

    Args:
        folder: The folder with the files.
        length: The largest number of tokens. A longer text is truncated before [EOS].

    Raises:
        BadModel: If the files are missing or damaged.
    """

    def __init__(self, folder: Path, length: int) -> None:
        with reading_tokenizer(folder):
            names = _special_tokens(folder)
            tokenizer = _clip_tokenizer(folder, names["unk_token"])
            tokenizer.add_special_tokens(list(dict.fromkeys(names.values())))
            sos, eos = names["bos_token"], names["eos_token"]
            ids = tokenizer.get_vocab()
            self.sos, self.eos = ids[sos], ids[eos]
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
            )
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
            tokenizer.post_processor = processors.RobertaProcessing((eos, self.eos), (sos, self.sos), False, False)
            tokenizer.no_padding()
            tokenizer.enable_truncation(length)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        """The tokens and their ids."""
        return self._tokenizer.get_vocab()

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, from [SOS] to [EOS]."""
        return self._tokenizer.encode(text).ids


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the names of the special tokens in tokenizer_config.json, or those of OpenAI's CLIP."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.exists() else {}
    defaults = {"bos_token": _SOS, "eos_token": _EOS, "unk_token": _EOS, "pad_token": _EOS}
    return {role: _content(settings.get(role)) or name for role, name in defaults.items()}


def _content(token: Any) -> str | None:
    """Return the text of a special token, which a file states by itself or among settings."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _clip_tokenizer(folder: Path, unknown: str) -> Tokenizer:
    if (folder / "tokenizer.json").exists():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    if not (folder / "vocab.json").exists():
        raise BadModel(f"{folder} has no tokenizer.json, expected the one of CLIP. Download the whole folder.")
    merges = [
        tuple(line.split()[:2])
        for line in (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#version")
    ]
    return Tokenizer(
        BPE(
            vocab=read_json(folder / "vocab.json"),
            merges=merges,  # type: ignore[arg-type]  # pairs of two
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=unknown,
        )
    )


class SiglipWords:
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
        token = _content(self._settings.get(role))
        found = self._tokenizer.token_to_id(token) if token is not None else None
        if found is None:
            raise BadModel(
                f"{folder / 'tokenizer_config.json'}: {role} is {token!r}, expected a token of tokenizer.json. "
                f"Download both files again."
            )
        return found
