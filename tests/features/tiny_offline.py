"""The parts of the backbone `offline` with random weights: a small classifier, and a small sentence encoder."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertModel

from midreel.features.backbones.efficientnet import NUM_CLASSES, STAGES

CHANNELS = (4, 6, 6, 8, 8, 10, 12)
HEAD = 16
WORDS = (
    "a",
    "an",
    "the",
    "of",
    "kind",
    "photo",
    "red",
    "ball",
    "dog",
    "bird",
    "cockatoo",
    "white",
    "fire",
    "on",
    "and",
    "tree",
)


def random_classifier(seed: int = 0) -> dict[str, Tensor]:
    """Return random weights with the names of an EfficientNet-Lite2, but narrow."""
    chance = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def add(name: str, norm: str, out: int, width_in: int, size: int) -> None:
        weights[f"{name}.weight"] = torch.randn(out, width_in, size, size, generator=chance) / (width_in * size) ** 0.5
        weights[f"{norm}.weight"] = 1 + 0.2 * torch.randn(out, generator=chance)
        weights[f"{norm}.bias"] = 0.3 * torch.randn(out, generator=chance)
        weights[f"{norm}.running_mean"] = 0.2 * torch.randn(out, generator=chance)
        weights[f"{norm}.running_var"] = 0.5 + torch.rand(out, generator=chance)
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    add("_conv_stem", "_bn0", 4, 3, 3)
    width, block = 4, 0
    for (repeats, _), channels in zip(STAGES, CHANNELS, strict=True):
        for _ in range(repeats):
            name, inner = f"_blocks.{block}", width if block == 0 else 2 * width
            if block:
                add(f"{name}._expand_conv", f"{name}._bn0", inner, width, 1)
            add(f"{name}._depthwise_conv", f"{name}._bn1", inner, 1, 5 if block % 2 else 3)
            add(f"{name}._project_conv", f"{name}._bn2", channels, inner, 1)
            width, block = channels, block + 1
    add("_conv_head", "_bn1", HEAD, width, 1)
    weights["_fc.weight"] = torch.randn(NUM_CLASSES, HEAD, generator=chance)
    weights["_fc.bias"] = torch.randn(NUM_CLASSES, generator=chance)
    return weights


def save_classifier(folder: Path, *, zipped: bool = False) -> Path:
    """Save a random classifier, in the old format as the published one, or in the new one."""
    path = folder / "efficientnet-lite2-random.pth"
    torch.save(random_classifier(), path, _use_new_zipfile_serialization=zipped)
    return path


def save_sentence_encoder(folder: Path) -> Path:
    """Save a random sentence encoder in the format of Sentence Transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    model = BertModel(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    return folder
