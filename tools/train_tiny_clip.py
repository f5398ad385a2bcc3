"""Trains the tiny CLIP that midreel ships, on single frames and captions of the playhouse.

    python -m tools.train_tiny_clip --steps 2500 --folder midreel/assets/tiny-clip

It is a CLIP in the Hugging Face format, small enough to train on a CPU and to keep in the repository, and stands in for
the real one wherever no weights can be downloaded: in the tests, in the demo. Like CLIP it sees stills only.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from midreel.datasets import playhouse
from midreel.datasets import playhouse_words as words
from midreel.memory import keep_freed_memory

IMAGE_SIZE = 64
CONTEXT_LENGTH = 40
NUM_MERGES = 1500
TRAIN_SEED, TEST_SEED = 1, 2
START, END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Stills:
    images: Tensor  # N 3 H W, uint8
    captions: list[tuple[str, ...]]


def render_stills(seed: int, num_videos: int, per_video: int, workers: int = 2) -> Stills:
    parts = [(seed, start, min(100, num_videos - start), per_video) for start in range(0, num_videos, 100)]
    with ProcessPoolExecutor(workers) as pool:
        done = list(pool.map(_render_part, parts))
    images = torch.from_numpy(np.concatenate([images for images, _ in done])).permute(0, 3, 1, 2).contiguous()
    return Stills(images=images, captions=[captions for _, part in done for captions in part])


def _render_part(part: tuple[int, int, int, int]) -> tuple[NDArray[np.uint8], list[tuple[str, ...]]]:
    seed, start, count, per_video = part
    images, captions = [], []
    for index in range(start, start + count):
        video = playhouse.make_video(seed, index, "stills")
        rng = np.random.default_rng((seed, index))
        for when in rng.uniform(0, video.duration, per_video):
            images.append(playhouse.render(video, when, (IMAGE_SIZE, IMAGE_SIZE)))
            captions.append((*playhouse.still_captions(video, when, rng), *_captions_of_the_event(video, when, rng)))
    return np.stack(images), captions


def _captions_of_the_event(video: playhouse.PlayhouseVideo, when: float, rng: np.random.Generator) -> list[str]:
    """What someone who saw the film would write under the still: it names actions that the still does not prove.

    The web's captions, from which CLIP learned its words, do the same.
    """
    backdrop, event = video.at(when)
    if event is None:
        return []
    return [words.describe(rng, event.action, event.side, event.actors, backdrop) for _ in range(2)]


def train_tokenizer(texts: Sequence[str]) -> CLIPTokenizer:
    """Byte pairs of the playhouse's own sentences, in CLIP's format: all bytes, all bytes that end a word, merges."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(vocab_size=NUM_MERGES + 100, end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    merges: Any = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]][:NUM_MERGES]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(merge) for merge in merges), START, END]
    vocabulary: Any = {entry: number for number, entry in enumerate(entries)}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=CONTEXT_LENGTH)


def make_model(tokenizer: CLIPTokenizer) -> CLIPModel:
    shared = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "projection_dim": 128}
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    text = {
        **shared,
        **ids,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT_LENGTH,
        "num_hidden_layers": 3,
    }
    vision = {**shared, "image_size": IMAGE_SIZE, "patch_size": 8, "num_hidden_layers": 4}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128))


def make_processor() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(
        size={"shortest_edge": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    )


class Trainer:
    def __init__(self, model: CLIPModel, tokenizer: CLIPTokenizer, stills: Stills, batch_size: int, steps: int) -> None:
        processor = make_processor()
        self.mean = torch.tensor(processor.image_mean)[:, None, None]
        self.std = torch.tensor(processor.image_std)[:, None, None]
        self.model, self.tokenizer, self.stills = model, tokenizer, stills
        self.batch_size, self.steps = batch_size, steps
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, betas=(0.9, 0.98))
        self.rng = np.random.default_rng(TRAIN_SEED)

    def pixels(self, index: NDArray[np.int64]) -> Tensor:
        return (self.stills.images[torch.as_tensor(index)].float() / 255 - self.mean) / self.std

    def tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return dict(
            self.tokenizer(list(texts), padding=True, truncation=True, max_length=CONTEXT_LENGTH, return_tensors="pt")
        )

    def step(self, number: int) -> float:
        rate = min(1.0, number / 100) * 0.5 * (1 + math.cos(math.pi * number / self.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = 1e-3 * rate
        index = self.rng.choice(len(self.stills.captions), self.batch_size, replace=False)
        chosen = [self.stills.captions[i][self.rng.integers(len(self.stills.captions[i]))] for i in index]
        output = self.model(pixel_values=self.pixels(index), **self.tokens(chosen))
        # The same sentence may be true of several stills of a batch: all of them are right answers.
        same = torch.tensor([[a == b for b in chosen] for a in chosen], dtype=torch.float32)
        target = same / same.sum(1, keepdim=True)
        loss = (F.cross_entropy(output.logits_per_image, target) + F.cross_entropy(output.logits_per_text, target)) / 2
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(100))
        return loss.item()


def save(folder: Path, model: CLIPModel, tokenizer: CLIPTokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    make_processor().save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("midreel/assets/tiny-clip"))
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--videos", type=int, default=12000)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(TRAIN_SEED)
    start = time.perf_counter()
    stills = render_stills(TRAIN_SEED, arguments.videos, 5)
    print(f"{len(stills.captions):,} stills in {time.perf_counter() - start:.0f} s", flush=True)
    tokenizer = train_tokenizer(sorted({text for captions in stills.captions for text in captions}))
    model = make_model(tokenizer)
    trainer = Trainer(model, tokenizer, stills, arguments.batch_size, arguments.steps)
    model.train()
    running = 0.0
    for number in range(arguments.steps):
        running = 0.98 * running + 0.02 * trainer.step(number) if number else trainer.step(0)
        if number % 50 == 0 or number == arguments.steps - 1:
            print(f"step {number}: loss {running:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
        if number % 500 == 499:
            save(arguments.folder, model, tokenizer)
    save(arguments.folder, model.eval(), tokenizer)


if __name__ == "__main__":
    main()
