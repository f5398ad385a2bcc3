"""SigLIPs with random weights in the Hugging Face format, with the tokenizer of SigLIP or SigLIP 2."""

import json
from pathlib import Path
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing
from transformers import Siglip2Tokenizer, SiglipConfig, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

CONTEXT_LENGTH = 16


def save_tiny_siglip(folder: Path, *, second: bool = False, seed: int = 0) -> Path:
    """Save a tiny SigLIP. Words have the width 32, images and sentences 48."""
    num_tokens = (_save_second_tokenizer if second else _save_first_tokenizer)(folder)
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"vocab_size": num_tokens, "hidden_size": 32, "max_position_embeddings": CONTEXT_LENGTH}
    config = SiglipConfig(
        text_config={**text, "projection_size": 48, **layers},
        vision_config={"hidden_size": 48, "image_size": 32, "patch_size": 8, **layers},
    )
    torch.manual_seed(seed)
    model = SiglipModel(config)
    for weight in model.parameters():  # the initial weights are so small that the order of words hardly matters
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def _save_first_tokenizer(folder: Path) -> int:
    """Save a SentencePiece model as tokenizer.json, with [EOS] as padding, as in SigLIP."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *ascii_lowercase, "▁the", "▁red", "▁ball", "é"]
    tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    tokenizer.pre_tokenizer = Metaspace(prepend_scheme="always")
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "do_lower_case": True,
        "eos_token": "</s>",
        "model_input_names": ["input_ids"],
        "model_max_length": 64,
        "pad_token": "</s>",
        "tokenizer_class": "SiglipTokenizer",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def _save_second_tokenizer(folder: Path) -> int:
    """Save a byte-pair encoding whose class converts to lower case, as in SigLIP 2."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *ascii_lowercase, "th", "the", "▁red", "re", "red"]
    merges = [("t", "h"), ("th", "e"), ("r", "e"), ("re", "d"), ("▁", "red")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Siglip2Tokenizer(vocab=vocabulary, merges=merges)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)
