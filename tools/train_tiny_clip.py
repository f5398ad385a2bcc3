"""Train tiny-clip, the backbone that is part of midreel, on single frames and captions of the playhouse.

    python -m tools.train_tiny_clip --folder midreel/assets/tiny-clip
    python -m tools.train_tiny_clip --card-only --folder midreel/assets/tiny-clip   # only measure it again

tiny-clip is a CLIP in the Hugging Face format, small enough for a CPU and for the repository. It replaces a real CLIP
where no weights can be downloaded, as in the tests and the demo. Like CLIP, it sees single frames. The tool also
measures it and writes its model card (`tools/tiny_clip_card.py`).
"""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from midreel.datasets import playhouse
from midreel.datasets.playhouse import words
from midreel.training.memory import keep_freed_memory
from tools.tiny_clip_card import NUM_STILLS, TRAIN_SEED, Training, write_card

IMAGE_SIZE = 64
WIDTH = 128
CONTEXT_LENGTH = 40
NUM_MERGES = 1500
LEARNING_RATE = 2e-3
NAMING_SHARE = 0.35  # fraction of the steps before the contrastive loss starts
STILLS_PER_VIDEO = 5
START, END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Stills:
    """Frames with their captions."""

    images: Tensor  # N 3 H W, uint8
    captions: list[tuple[str, ...]]
    things: Tensor  # N K, True if a thing of the playhouse is in view


def render_stills(seed: int, num_videos: int, per_video: int, workers: int = 2) -> Stills:
    """Render random frames of playhouse videos, in `workers` processes."""
    parts = [(seed, start, min(100, num_videos - start), per_video) for start in range(0, num_videos, 100)]
    if len(parts) == 1:  # too little work for a process
        done = [_render_part(parts[0])]
    else:
        with ProcessPoolExecutor(workers) as pool:
            done = list(pool.map(_render_part, parts))
    return Stills(
        images=torch.cat([part.images for part in done]),
        captions=[captions for part in done for captions in part.captions],
        things=torch.cat([part.things for part in done]),
    )


def _render_part(part: tuple[int, int, int, int]) -> Stills:
    seed, start, count, per_video = part
    images, captions, things = [], [], []
    for index in range(start, start + count):
        video = playhouse.make_video(seed, index, "stills")
        rng = np.random.default_rng((seed, index))
        for when in rng.uniform(0, video.duration, per_video):
            images.append(playhouse.render(video, when, (IMAGE_SIZE, IMAGE_SIZE)))
            captions.append((*playhouse.still_captions(video, when, rng), *_event_captions(video, when, rng)))
            in_view = {actor.thing for actor in playhouse.in_view(video, when)}
            things.append([thing in in_view for thing in words.THING_WORDS])
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return Stills(images=pixels, captions=captions, things=torch.tensor(things))


def _event_captions(video: playhouse.PlayhouseVideo, when: float, rng: np.random.Generator) -> list[str]:
    """Return captions by somebody who saw the film. They name actions that the frame alone does not show.

    Captions on the web, from which CLIP learned, do the same.
    """
    backdrop, event = video.at(when)
    if event is None:
        return []
    return [words.describe(rng, event.action, event.side, event.actors, backdrop) for _ in range(2)]


def train_tokenizer(texts: Sequence[str]) -> CLIPTokenizer:
    """Train byte pairs on sentences, in CLIP's format: all bytes, all bytes at the end of a word, merges."""
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
    """Return an untrained model."""
    shared = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_attention_heads": 4,
        "projection_dim": WIDTH,
        "hidden_act": "gelu",  # one fused kernel, while CLIP's quick_gelu takes three passes on a CPU
    }
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
    # Patches of half a thing and initial weights of four times CLIP's learn shapes sooner, as experiments showed.
    vision = {
        **shared,
        "image_size": IMAGE_SIZE,
        "patch_size": 16,
        "num_hidden_layers": 4,
        "initializer_factor": 4.0,
    }
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH))


def make_processor() -> CLIPImageProcessorPil:
    """Return the image processor."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    )


class Trainer:
    """A training in two phases: first the image encoder learns to name things, then the contrastive loss is added.

    Backdrops and colours distinguish most frames, so the contrastive loss alone hardly teaches shapes: after 1,000
    steps with patches of 8 pixels, the model knew 18 % of the things. Naming uses a linear head that is not saved.
    """

    def __init__(self, model: CLIPModel, tokenizer: CLIPTokenizer, stills: Stills, batch_size: int, steps: int) -> None:
        processor = make_processor()
        self.mean = torch.tensor(processor.image_mean)[:, None, None]
        self.std = torch.tensor(processor.image_std)[:, None, None]
        self.model, self.stills, self.batch_size, self.steps = model, stills, batch_size, steps
        self.head = nn.Linear(WIDTH, stills.things.shape[1])
        self.parameters = [*model.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.98))
        self.rng = np.random.default_rng(TRAIN_SEED)
        texts = sorted({text for captions in stills.captions for text in captions})
        self.number_of_text = {text: number for number, text in enumerate(texts)}
        self.tokens = tokenizer(
            texts, padding="max_length", truncation=True, max_length=CONTEXT_LENGTH, return_tensors="pt"
        )

    def step(self, number: int) -> dict[str, float]:
        """Run one step, and return its loss terms."""
        rate = min(1.0, number / 100) * 0.5 * (1 + math.cos(math.pi * number / self.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = LEARNING_RATE * rate
        stills = torch.as_tensor(self.rng.choice(len(self.stills.captions), self.batch_size, replace=False))
        pixels = (self.stills.images[stills].float() / 255 - self.mean) / self.std
        if number < NAMING_SHARE * self.steps:
            terms = {"naming": self._naming(self.model.vision_model(pixels).pooler_output, stills)}
        else:
            texts = self._draw_texts(stills)
            output = self.model(pixel_values=pixels, **self._tokens(texts))
            terms = {
                "naming": self._naming(output.vision_model_output.pooler_output, stills),
                "contrast": self._contrast(output.logits_per_image, texts),
            }
        self.optimiser.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(100))
        return {name: term.item() for name, term in terms.items()}

    def _draw_texts(self, stills: Tensor) -> Tensor:
        """Draw a caption of each still, and return the numbers of the captions."""
        captions = (self.stills.captions[still] for still in stills.tolist())
        return torch.tensor([self.number_of_text[texts[self.rng.integers(len(texts))]] for texts in captions])

    def _tokens(self, texts: Tensor) -> dict[str, Tensor]:
        mask = self.tokens["attention_mask"][texts]
        longest = int(mask.sum(1).max())
        return {"input_ids": self.tokens["input_ids"][texts, :longest], "attention_mask": mask[:, :longest]}

    def _contrast(self, logits: Tensor, texts: Tensor) -> Tensor:
        """Return CLIP's loss. A caption may belong to several stills of a batch, which are all right answers."""
        target = F.normalize((texts[:, None] == texts).float(), p=1, dim=1)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def _naming(self, pooled: Tensor, stills: Tensor) -> Tensor:
        """Return the loss of naming. Both things in a still are right answers. Stills without things are ignored."""
        things = self.stills.things[stills]
        asked = things.any(1)
        return F.cross_entropy(self.head(pooled[asked]), F.normalize(things[asked].float(), p=1, dim=1))


def save(folder: Path, model: CLIPModel, tokenizer: CLIPTokenizer, training: Training) -> None:
    """Write the model, the tokenizer, the image processor and the record of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    make_processor().save_pretrained(folder)
    training.write(folder)


def _shown(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {loss:.2f}" for name, loss in losses.items())


def train(folder: Path, *, steps: int, batch_size: int, num_videos: int) -> None:
    """Train a model, and save it to a folder every 500 steps."""
    keep_freed_memory()
    torch.manual_seed(TRAIN_SEED)
    start = time.perf_counter()
    stills = render_stills(TRAIN_SEED, num_videos, STILLS_PER_VIDEO)
    print(f"{len(stills.captions):,} stills in {time.perf_counter() - start:.0f} s", flush=True)
    tokenizer = train_tokenizer(sorted({text for captions in stills.captions for text in captions}))
    model = make_model(tokenizer)
    trainer = Trainer(model, tokenizer, stills, batch_size, steps)
    model.train()
    running: dict[str, float] = {}
    for number in range(steps):
        for name, loss in trainer.step(number).items():
            running[name] = 0.97 * running.get(name, loss) + 0.03 * loss
        last = number == steps - 1
        if number % 50 == 0 or last:
            print(f"step {number}: loss {_shown(running)}, {time.perf_counter() - start:.0f} s", flush=True)
        if number % 500 == 499 or last:
            so_far = Training(
                steps=number + 1,
                batch_size=batch_size,
                num_videos=num_videos,
                playhouse_version=playhouse.VERSION,
                stills_per_video=STILLS_PER_VIDEO,
                naming_share=NAMING_SHARE,
                seconds=round(time.perf_counter() - start),
                final_loss=round(running.get("contrast", running["naming"]), 3),
            )
            save(folder, model, tokenizer, so_far)


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("midreel/assets/tiny-clip"),
        help="folder of the model [midreel/assets/tiny-clip]",
    )
    parser.add_argument("--steps", type=int, default=3600, help="number of steps [3600]")
    parser.add_argument("--batch-size", type=int, default=192, help="stills per step [192]")
    parser.add_argument("--videos", type=int, default=16000, help="number of videos to train on [16000]")
    parser.add_argument("--held-out", type=int, default=NUM_STILLS, help="number of stills to measure on [4000]")
    parser.add_argument("--card-only", action="store_true", help="do not train, only measure and write the card")
    arguments = parser.parse_args(command_line)
    if not arguments.card_only:
        train(
            arguments.folder,
            steps=arguments.steps,
            batch_size=arguments.batch_size,
            num_videos=arguments.videos,
        )
    print(write_card(arguments.folder, arguments.held_out))


if __name__ == "__main__":
    main()
