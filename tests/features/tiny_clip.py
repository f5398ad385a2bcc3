"""CLIPs with random weights, in the Hugging Face format."""

from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

SOS, EOS = "<|startoftext|>", "<|endoftext|>"
MERGES = [("t", "h"), ("th", "e</w>"), ("r", "e"), ("re", "d</w>"), ("l", "l</w>"), ("a", "ll</w>"), ("b", "all</w>")]


def save_tiny_clip(folder: Path, *, seed: int = 0) -> Path:
    """Save a tiny CLIP whose three widths differ: joint space 24, words 32, image encoder 48."""
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 24}
    return _save(
        folder,
        seed=seed,
        text={"hidden_size": 32, "max_position_embeddings": 16, **layers},
        vision={"hidden_size": 48, "image_size": 32, "patch_size": 8, **layers},
        width=24,
    )


def save_base_clip(folder: Path, *, seed: int = 0) -> Path:
    """Save a CLIP whose image encoder is a ViT-B/32, the default of transformers."""
    return _save(folder, seed=seed, text={"num_hidden_layers": 1}, vision={"image_size": 224}, width=512)


def _save(folder: Path, *, seed: int, text: dict[str, int], vision: dict[str, int], width: int) -> Path:
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, *(f"{letter}</w>" for letter in alphabet), *("".join(pair) for pair in MERGES), SOS, EOS]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=MERGES)  # type: ignore[arg-type]  # it takes pairs
    special = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1, "pad_token_id": len(tokens) - 1}
    config = CLIPConfig(
        text_config={"vocab_size": len(tokens), **text, **special}, vision_config=vision, projection_dim=width
    )
    torch.manual_seed(seed)
    model = CLIPModel(config)
    for weight in model.parameters():  # the initial weights are so small that the order of words hardly matters
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = vision["image_size"]
    processor = CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
    processor.save_pretrained(folder)
    return folder
