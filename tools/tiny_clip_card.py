"""Measure tiny-clip on frames of unseen videos, and write its model card.

The frames pass through the same code as those of any other CLIP.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor

from midreel.datasets import playhouse
from midreel.datasets.playhouse import words
from midreel.datasets.playhouse.words import Actor
from midreel.errors import BadModel
from midreel.evaluation.metrics import recalls
from midreel.evaluation.tables import to_markdown
from midreel.features.backbones.base import LOCAL, Backbone, Fingerprint, load_backbone, weight_files

TRAIN_SEED, TEST_SEED = 1, 2  # seeds of the playhouse
NUM_STILLS = 4000
NUM_RANKED = 1000  # stills for the recalls, which depend on the number of candidates
RECALLS_AT = (1, 5, 10)
BATCH_SIZE = 250
# A still shows the first pair. It hints at the second if a thing has a front and a back. It cannot show the third.
OPPOSITES = (("above", "below"), ("enters", "leaves"), ("rises", "falls"))

THING_OF_WORD = {word: thing for thing, names in words.THING_WORDS.items() for word in names}
COLOUR_OF_WORD = {word: colour for colour, names in words.COLOUR_WORDS.items() for word in names}

Rows = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The record of a training, for the card. It is stored next to the weights."""

    steps: int
    batch_size: int
    num_videos: int
    playhouse_version: int  # of the generator of the stills
    stills_per_video: int
    naming_share: float  # fraction of the steps before the contrastive loss starts
    seconds: float
    final_loss: float

    FILE_NAME = "training.json"

    def write(self, folder: Path) -> None:
        """Write the record to the folder of the model."""
        (folder / self.FILE_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Training":
        """Read the record from the folder of a model.

        Raises:
            BadModel: If the file is missing or has other fields.
        """
        path = folder / cls.FILE_NAME
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise BadModel(
                f"{path} cannot be read ({error}), expected an object with "
                f"{', '.join(field.name for field in fields(cls))}. Train again."
            ) from error


# ---------------------------------------------------------------- scenes


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A frame of a video, and a caption that names the backdrop and all actors in view."""

    video: playhouse.PlayhouseVideo
    time: float
    caption: str

    @property
    def backdrop(self) -> str:
        """The backdrop at this time."""
        return self.video.at(self.time)[0]

    @property
    def event(self) -> playhouse.Event | None:
        """The event at this time, or None between events."""
        return self.video.at(self.time)[1]

    @cached_property
    def cast(self) -> frozenset[Actor]:
        """The actors in view, read from the caption, because actors of the event may be hidden or off the stage."""
        return frozenset(
            Actor(THING_OF_WORD[word], COLOUR_OF_WORD[before])
            for before, word in pairwise(words.words_of(self.caption))
            if word in THING_OF_WORD
        )

    def picture(self) -> playhouse.Frame:
        """Render the frame."""
        return playhouse.render(self.video, self.time)


def held_out_scenes(count: int) -> list[Scene]:
    """Return one scene of each video, so that no two show the same event."""
    scenes = []
    for index in range(count):
        video = playhouse.make_video(TEST_SEED, index, "stills")
        rng = np.random.default_rng((TEST_SEED, index))
        time = rng.uniform(0, video.duration)
        scenes.append(Scene(video=video, time=time, caption=playhouse.still_captions(video, time, rng)[0]))
    return scenes


# ---------------------------------------------------------------- figures


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Percentages by row and column, with those of guessing and the number of stills."""

    retrieval: Rows
    choices: Rows


def zero_shot_figures(backbone: Backbone, num_stills: int = NUM_STILLS) -> Figures:
    """Measure retrieval between stills and captions, and zero-shot classification of stills."""
    scenes = held_out_scenes(num_stills)
    images = encode_pictures(backbone, scenes)
    captions = encode_texts(backbone, [scene.caption for scene in scenes[:NUM_RANKED]])
    return Figures(
        retrieval=retrieval(images[:NUM_RANKED] @ captions.mT, same_scene(scenes[:NUM_RANKED])),
        choices={**classification(backbone, scenes, images), **opposites(backbone, scenes, images)},
    )


def same_scene(scenes: Sequence[Scene]) -> Bool[Tensor, "N N"]:
    """Return True for pairs with the same cast and backdrop, where the caption of one also describes the other."""
    number_of_content: dict[object, int] = {}
    contents = [(scene.cast, scene.backdrop) for scene in scenes]
    numbers = torch.tensor([number_of_content.setdefault(content, len(number_of_content)) for content in contents])
    return numbers[:, None] == numbers


def retrieval(scores: Float[Tensor, "N N"], right: Bool[Tensor, "N N"]) -> Rows:
    """Return the recalls of stills as queries (rows), of captions as queries (columns), and of guessing."""
    table = {
        "caption of a still": recalls(ranks_of_best(scores, right), RECALLS_AT),
        "still of a caption": recalls(ranks_of_best(scores.mT, right.mT), RECALLS_AT),
        "chance": {f"R@{k}": recall_of_draws(right, k) for k in RECALLS_AT},
    }
    names = [f"R@{k}" for k in RECALLS_AT]
    return {row: {**{name: figures[name] for name in names}, "among": len(right)} for row, figures in table.items()}


def recall_of_draws(right: Bool[Tensor, "N M"], count: int) -> float:
    """Return the percentage of rows for which `count` random columns include a right one."""
    size = right.shape[1]
    misses = [math.comb(size - num, count) / math.comb(size, count) for num in right.sum(1).tolist()]
    return 100 * (1 - statistics.fmean(misses))


def ranks_of_best(scores: Float[Tensor, "N M"], right: Bool[Tensor, "N M"]) -> Int[Tensor, " N"]:
    """Return the rank of the first right answer, from 1. Wrong answers with the same score rank before it."""
    best = scores.masked_fill(~right, -math.inf).amax(1, keepdim=True)
    return 1 + ((scores >= best) & ~right).sum(1)


def classification(backbone: Backbone, scenes: Sequence[Scene], images: Float[Tensor, "N E"]) -> Rows:
    """Classify things and colours in stills with one actor, and backdrops in all stills."""
    alone = [number for number, scene in enumerate(scenes) if len(scene.cast) == 1]
    actors = [actor for number in alone for actor in scenes[number].cast]

    def row(prompts: Mapping[str, Sequence[str]], images: Tensor, answers: Sequence[str]) -> dict[str, float]:
        # The embedding of a class is the mean of its prompts, as usual with CLIP.
        classes = torch.stack([encode_texts(backbone, texts).mean(0) for texts in prompts.values()])
        return choice(images, F.normalize(classes, dim=1), [list(prompts).index(answer) for answer in answers])

    return {
        f"which of {len(words.THING_WORDS)} things": row(
            thing_prompts(), images[alone], [actor.thing for actor in actors]
        ),
        f"which of {len(words.COLOUR_WORDS)} colours": row(
            colour_prompts(), images[alone], [actor.colour for actor in actors]
        ),
        f"which of {len(words.BACKDROP_WORDS)} backdrops": row(
            backdrop_prompts(), images, [scene.backdrop for scene in scenes]
        ),
    }


def opposites(backbone: Backbone, scenes: Sequence[Scene], images: Float[Tensor, "N E"]) -> Rows:
    """Measure how often the right one of two sentences about the actors of a still scores higher."""
    rows = {}
    for pair in OPPOSITES:
        shown = [
            (image, event)
            for image, scene in zip(images, scenes, strict=True)
            if (event := scene.event) and event.action in pair and event.actors[0] in scene.cast
        ]
        if not shown:
            continue
        texts = [action_prompt(action, event) for _, event in shown for action in pair]
        classes = encode_texts(backbone, texts).unflatten(0, (len(shown), len(pair)))
        answers = [pair.index(event.action) for _, event in shown]
        rows[" or ".join(pair)] = choice(torch.stack([image for image, _ in shown]), classes, answers)
    return rows


def choice(images: Float[Tensor, "N E"], classes: Float[Tensor, "*N C E"], answers: Sequence[int]) -> dict[str, float]:
    """Return how often the right class is the nearest.

    Args:
        images: The images.
        classes: The classes, either the same for all images or different for each.
        answers: The index of the right class of each image.
    """
    right = (images[:, None] * classes).sum(-1).argmax(1) == torch.tensor(answers)
    return {
        "accuracy": 100 * right.double().mean().item(),
        "chance": 100 / classes.shape[-2],
        "stills": len(images),
    }


# ---------------------------------------------------------------- prompts


def thing_prompts() -> dict[str, list[str]]:
    """Return the prompts of each thing."""
    return {
        thing: [with_article(f"{colour} {name}") for name in names for colour in words.COLOUR_WORDS]
        for thing, names in words.THING_WORDS.items()
    }


def colour_prompts() -> dict[str, list[str]]:
    """Return the prompts of each colour."""
    return {
        colour: [with_article(f"{name} {thing}") for name in names for thing in words.THING_WORDS]
        for colour, names in words.COLOUR_WORDS.items()
    }


def backdrop_prompts() -> dict[str, list[str]]:
    """Return the prompts of each backdrop."""
    subjects = [words.EMPTY[0], *map(with_article, words.THING_WORDS)]
    return {
        backdrop: [f"{subject} {place}" for place in places for subject in subjects]
        for backdrop, places in words.BACKDROP_WORDS.items()
    }


def action_prompt(action: str, event: playhouse.Event) -> str:
    """Return a sentence in which the actors of an event do an action."""
    names = [with_article(f"{actor.colour} {actor.thing}") for actor in event.actors]
    return words.CLAUSES[action][0].format(a=names[0], b=names[-1], side=event.side)


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


# ---------------------------------------------------------------- embeddings


def encode_pictures(backbone: Backbone, scenes: Sequence[Scene]) -> Float[Tensor, "N E"]:
    """Return the unit vectors of the frames."""
    parts = (scenes[start : start + BATCH_SIZE] for start in range(0, len(scenes), BATCH_SIZE))
    vectors = [backbone.encode_images([scene.picture() for scene in part]) for part in parts]
    return F.normalize(torch.from_numpy(np.concatenate(vectors)), dim=1)


def encode_texts(backbone: Backbone, texts: Sequence[str]) -> Float[Tensor, "N E"]:
    """Return the unit vectors of the texts."""
    parts = (texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE))
    vectors = [text.sentence for part in parts for text in backbone.encode_texts(part)]
    return F.normalize(torch.from_numpy(np.stack(vectors)), dim=1)


# ---------------------------------------------------------------- the card


def write_card(folder: Path, num_stills: int = NUM_STILLS) -> str:
    """Measure the model in `folder`, write its README.md, and return the text."""
    training = Training.read(folder)
    backbone = load_backbone(f"{LOCAL}{folder}")
    text = card(training, backbone.fingerprint, Weights.of(folder), zero_shot_figures(backbone, num_stills))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The size of a model."""

    num_parameters: int
    num_bytes: int

    @classmethod
    def of(cls, folder: Path) -> "Weights":
        """Return the size of the model in a folder."""
        (path,) = weight_files(folder)
        return cls(
            num_parameters=sum(weight.numel() for weight in load_file(path).values()), num_bytes=path.stat().st_size
        )


def card(training: Training, fingerprint: Fingerprint, weights: Weights, figures: Figures) -> str:
    """Return the model card, in the format of the Hugging Face hub."""
    num_stills = training.num_videos * training.stills_per_video
    command = (
        f"python -m tools.train_tiny_clip --steps {training.steps} --batch-size {training.batch_size} "
        f"--videos {training.num_videos}"
    )
    width, height = playhouse.FRAME_SIZE
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: zero-shot-image-classification
language: en
tags:
- clip
- synthetic
- midreel
---

# The playhouse's tiny CLIP

A CLIP that is small enough for a CPU and for a repository. It replaces a real CLIP where no weights can be downloaded,
as in the tests and the demo of midreel. The folder is in the Hugging Face format.

The tool that trained the model wrote this card, and measured every figure.

## The model

| | |
|---|---|
| architecture | {fingerprint.backbone} |
| image | {fingerprint.image_size} by {fingerprint.image_size} pixels |
| text | up to {fingerprint.context_length} tokens, byte pairs trained on sentences of the playhouse |
| joint space | {fingerprint.width} dimensions |
| parameters | {weights.num_parameters:,} |
| weights | {weights.num_bytes / 1e6:.1f} MB |
| sha256 of the weights | `{fingerprint.weights}` |

## Training

From scratch, on {num_stills:,} stills: {training.stills_per_video} of each of {training.num_videos:,} videos of the
playhouse (`midreel.datasets.playhouse`, split "stills", seed {TRAIN_SEED}, generator version
{training.playhouse_version}). Most captions describe the still. Some describe the event that it is from, as captions on
the web do.

{training.steps:,} steps of {training.batch_size} stills took {training.seconds:,.0f} s, including rendering. In the
first {training.naming_share:.0%} of the steps, only the image encoder learns: a linear head names the things in a
still. Then both encoders learn by CLIP's contrastive loss, which ended at {training.final_loss:.3f}, together with the
head. The contrastive loss alone hardly teaches shapes, because backdrops and colours distinguish most stills. The head
is not saved.

```sh
{command}
```

## Figures

All in percent, on one still of each video of seed {TEST_SEED} (generator version {playhouse.VERSION}). The model was
not trained on them. Frames are {width} by {height} pixels, resized and cropped as in any other video.

Retrieval. A caption names the backdrop and all actors in view. It is right for every still with the same backdrop and
actors, in any words. Ties count against the model.

{to_markdown(figures.retrieval, digits={"among": 0}, corner="find the")}
Zero-shot classification. Things and colours are classified in stills with one actor. A class is the average of prompts
with all words that the playhouse has for it.

{to_markdown(figures.choices, digits={"stills": 0}, corner="choose")}
The last rows choose between two sentences about the actors of a still. A still shows "above" and "below". An actor that
enters may face another way than one that leaves. Rising and falling actors look the same in a still, so a figure far
from chance would be an error of the measurement.

## Limits

- It knows the playhouse's drawings of {len(words.THING_WORDS)} things in {len(words.COLOUR_WORDS)} colours on
  {len(words.BACKDROP_WORDS)} backdrops, and the {len(words.vocabulary())} words of its sentences. It encodes other
  texts and photographs too, but the results are meaningless.
- It sees single frames. A model that is trained on its features has to learn motion.
- Its figures say nothing about a CLIP that was trained on photographs.

## Use

```python
from midreel.features import load_backbone

backbone = load_backbone("{LOCAL}PATH/TO/THIS/FOLDER")
```
"""
