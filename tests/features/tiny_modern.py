"""Today's encoders with random weights, in the Hugging Face format: MetaCLIP 2 and VideoPrism."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MetaClip2Config, MetaClip2Model, PreTrainedTokenizerFast, VideoPrismClipModel, VideoPrismConfig

WORDS = ("a", "red", "ball", "der", "rote", "赤い", "dog", "cat", "and", "the")


def _tokenizer(folder: Path, special: list[str], *, pad: str, ends: tuple[str, str] | None) -> int:
    """Save a tokenizer of words, and return the number of its tokens."""
    tokens = {token: number for number, token in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends:
        first, last = ends
        tokenizer.post_processor = processors.RobertaProcessing(
            (last, tokens[last]), (first, tokens[first]), False, False
        )
    names: dict[str, Any] = {"pad_token": pad, "unk_token": "<unk>"} | (
        {"bos_token": ends[0], "eos_token": ends[1]} if ends else {}
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return len(tokens)


def _save(model: Any, folder: Path, processor: dict[str, Any], name: str) -> Path:
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    (folder / name).write_text(json.dumps(processor))
    return folder


def save_metaclip_2(folder: Path) -> Path:
    """Save a tiny MetaCLIP 2 with [EOS] at 2, as the published ones have."""
    torch.manual_seed(0)
    number = _tokenizer(folder, ["<s>", "<pad>", "</s>", "<unk>"], pad="<pad>", ends=("<s>", "</s>"))
    layers = {"intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 24}
    config = MetaClip2Config(
        text_config={
            "vocab_size": number,
            "hidden_size": 32,
            "max_position_embeddings": 12,
            "eos_token_id": 2,
            "bos_token_id": 0,
            "pad_token_id": 1,
            **layers,
        },
        vision_config={"hidden_size": 48, "image_size": 32, "patch_size": 8, **layers},
        projection_dim=24,
    )
    processor = {"size": {"shortest_edge": 32}, "crop_size": 32, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    return _save(MetaClip2Model(config), folder, processor, "preprocessor_config.json")


def save_videoprism(folder: Path) -> Path:
    """Save a tiny VideoPrism of four frames a vector."""
    torch.manual_seed(0)
    number = _tokenizer(folder, ["<pad>", "</s>", "<unk>"], pad="<pad>", ends=None)
    layers = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
    config = VideoPrismConfig(
        text_config={"vocab_size": number, "max_position_embeddings": 8, "num_hidden_layers": 2, **layers},
        vision_config={
            "image_size": 36,
            "num_frames": 4,
            "tubelet_size": [1, 18, 18],
            "num_spatial_layers": 2,
            "num_temporal_layers": 1,
            "num_auxiliary_layers": 1,
            **layers,
        },
    )
    processor = {"size": {"height": 36, "width": 36}, "do_normalize": False}
    return _save(VideoPrismClipModel(config), folder, processor, "video_preprocessor_config.json")
