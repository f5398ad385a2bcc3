"""MetaCLIP 2 in the Hugging Face format: a CLIP whose texts are in more than 300 languages.

It computes what a CLIP computes. Only the tokenizer differs: it is the one in tokenizer.json, which ends a text with
the [EOS] at which the model was trained to pool.
"""

from pathlib import Path

from transformers import MetaClip2Model, PreTrainedTokenizerFast

from midreel.errors import BadModel
from midreel.features.backbones.clip import Clip
from midreel.features.backbones.hugging_face import Pretrained
from midreel.features.backbones.words import reading_tokenizer


def load(folder: Path, *, device: str, source: str) -> Clip:
    """Load the MetaCLIP 2 in a folder. Raise BadModel if its files do not fit together. See `load_backbone`.

    Args:
        folder: A folder in the Hugging Face format.
        device: The torch device.
        source: The name that the user gave, for the fingerprint.
    """
    pretrained = Pretrained.load(folder, MetaClip2Model, "MetaCLIP 2")
    if not (folder / "tokenizer.json").exists():
        raise BadModel(f"{folder} has no tokenizer.json, expected the one of MetaCLIP 2. Download the whole folder.")
    with reading_tokenizer(folder):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        ids = tokenizer("a")["input_ids"]
    pretrained.expect_vocabulary(len(tokenizer))
    eos = pretrained.config.text_config.eos_token_id
    if ids[-1] != eos or tokenizer.pad_token_id is None:
        raise BadModel(
            f"{folder}: a text ends with the token {ids[-1]} and is padded with {tokenizer.pad_token_id}, expected "
            f"[EOS], which is {eos}, and a padding token. Use the tokenizer of MetaCLIP 2."
        )
    return Clip(pretrained, tokenizer, source=source, device=device, kind="metaclip_2")
