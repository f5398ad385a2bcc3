"""What the tiny CLIP knows, measured on stills of videos that it never saw, and the model card that says so.

It sees what any CLIP would see: whole frames of a video, through the code that loads any CLIP's folder.
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

TRAIN_SEED, TEST_SEED = 1, 2  # of the playhouse: what is measured on is made from another seed than what is learnt from
NUM_STILLS = 4000
NUM_RANKED = 1000  # of them, for recall depends on how many there are to choose from
RECALLS_AT = (1, 5, 10)
BATCH_SIZE = 250
# One still shows the first, hints at the second where a thing has a front and a back, and says nothing of the third.
OPPOSITES = (("above", "below"), ("enters", "leaves"), ("rises", "falls"))

THING_OF_WORD = {word: thing for thing, names in words.THING_WORDS.items() for word in names}
COLOUR_OF_WORD = {word: colour for colour, names in words.COLOUR_WORDS.items() for word in names}

Rows = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the card says about the training, kept beside the weights: they cannot tell."""

    steps: int
    batch_size: int
    num_videos: int
    playhouse_version: int  # of the generator of the stills
    stills_per_video: int
    naming_share: float  # of the steps, before contrast begins
    seconds: float
    final_loss: float

    FILE_NAME = "training.json"

    def write(self, folder: Path) -> None:
        (folder / self.FILE_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Training":
        path = folder / cls.FILE_NAME
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise BadModel(
                f"{path} cannot be read ({error}), expected an object of "
                f"{', '.join(field.name for field in fields(cls))}; train again, or write it from the training's log"
            ) from error


# ---------------------------------------------------------------- what is looked at


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An instant of a video, and a caption that names all who are in view and the backdrop."""

    video: playhouse.PlayhouseVideo
    time: float
    caption: str

    @property
    def backdrop(self) -> str:
        return self.video.at(self.time)[0]

    @property
    def event(self) -> playhouse.Event | None:
        return self.video.at(self.time)[1]

    @cached_property
    def cast(self) -> frozenset[Actor]:
        """Who is in view. The caption is asked, for an actor may be off the stage, hidden or blinked away."""
        return frozenset(
            Actor(THING_OF_WORD[word], COLOUR_OF_WORD[before])
            for before, word in pairwise(words.words_of(self.caption))
            if word in THING_OF_WORD
        )

    def picture(self) -> playhouse.Frame:
        return playhouse.render(self.video, self.time)


def held_out_scenes(count: int) -> list[Scene]:
    """One scene of each video, so that no two show the same event."""
    scenes = []
    for index in range(count):
        video = playhouse.make_video(TEST_SEED, index, "stills")
        rng = np.random.default_rng((TEST_SEED, index))
        time = rng.uniform(0, video.duration)
        scenes.append(Scene(video=video, time=time, caption=playhouse.still_captions(video, time, rng)[0]))
    return scenes


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Percentages by row and column, with what guessing would give and the number of stills that they are of."""

    retrieval: Rows
    choices: Rows


def zero_shot_figures(backbone: Backbone, num_stills: int = NUM_STILLS) -> Figures:
    """How well stills find their captions and captions their stills, and what a still is taken for among prompts."""
    scenes = held_out_scenes(num_stills)
    images = encode_pictures(backbone, scenes)
    captions = encode_texts(backbone, [scene.caption for scene in scenes[:NUM_RANKED]])
    return Figures(
        retrieval=retrieval(images[:NUM_RANKED] @ captions.mT, same_scene(scenes[:NUM_RANKED])),
        choices={**classification(backbone, scenes, images), **opposites(backbone, scenes, images)},
    )


def same_scene(scenes: Sequence[Scene]) -> Bool[Tensor, "N N"]:
    """Where the caption of one is true of the other: the same cast on the same backdrop, in whatever words."""
    number_of_content: dict[object, int] = {}
    contents = [(scene.cast, scene.backdrop) for scene in scenes]
    numbers = torch.tensor([number_of_content.setdefault(content, len(number_of_content)) for content in contents])
    return numbers[:, None] == numbers


def retrieval(scores: Float[Tensor, "N N"], right: Bool[Tensor, "N N"]) -> Rows:
    """Recalls of stills (rows) as queries, of captions (columns) as queries, and of a draw without looking."""
    table = {
        "caption of a still": recalls(ranks_of_best(scores, right), RECALLS_AT),
        "still of a caption": recalls(ranks_of_best(scores.mT, right.mT), RECALLS_AT),
        "chance": {f"R@{k}": recall_of_draws(right, k) for k in RECALLS_AT},
    }
    names = [f"R@{k}" for k in RECALLS_AT]
    return {row: {**{name: figures[name] for name in names}, "among": len(right)} for row, figures in table.items()}


def recall_of_draws(right: Bool[Tensor, "N M"], count: int) -> float:
    """The percentage of rows for which `count` different columns, drawn blindly, hold a right one."""
    size = right.shape[1]
    misses = [math.comb(size - num, count) / math.comb(size, count) for num in right.sum(1).tolist()]
    return 100 * (1 - statistics.fmean(misses))


def ranks_of_best(scores: Float[Tensor, "N M"], right: Bool[Tensor, "N M"]) -> Int[Tensor, " N"]:
    """The position of the first right answer, counted from 1; a wrong one with the same score comes before it."""
    best = scores.masked_fill(~right, -math.inf).amax(1, keepdim=True)
    return 1 + ((scores >= best) & ~right).sum(1)


def classification(backbone: Backbone, scenes: Sequence[Scene], images: Float[Tensor, "N E"]) -> Rows:
    """The thing and its colour where one actor is in view, the backdrop always."""
    alone = [number for number, scene in enumerate(scenes) if len(scene.cast) == 1]
    actors = [actor for number in alone for actor in scenes[number].cast]

    def row(prompts: Mapping[str, Sequence[str]], images: Tensor, answers: Sequence[str]) -> dict[str, float]:
        # A class is the mean of its prompts, as is usual with CLIP.
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
    """Which of two sentences about the still's own actors is true of the event that it was taken from."""
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
    """How often the right class is the nearest. The classes are the same for all images, or each image has its own."""
    right = (images[:, None] * classes).sum(-1).argmax(1) == torch.tensor(answers)
    return {
        "accuracy": 100 * right.double().mean().item(),
        "chance": 100 / classes.shape[-2],
        "stills": len(images),
    }


# ---------------------------------------------------------------- prompts


def thing_prompts() -> dict[str, list[str]]:
    return {
        thing: [with_article(f"{colour} {name}") for name in names for colour in words.COLOUR_WORDS]
        for thing, names in words.THING_WORDS.items()
    }


def colour_prompts() -> dict[str, list[str]]:
    return {
        colour: [with_article(f"{name} {thing}") for name in names for thing in words.THING_WORDS]
        for colour, names in words.COLOUR_WORDS.items()
    }


def backdrop_prompts() -> dict[str, list[str]]:
    whatever = [words.EMPTY[0], *map(with_article, words.THING_WORDS)]
    return {
        backdrop: [f"{what} {place}" for place in places for what in whatever]
        for backdrop, places in words.BACKDROP_WORDS.items()
    }


def action_prompt(action: str, event: playhouse.Event) -> str:
    names = [with_article(f"{actor.colour} {actor.thing}") for actor in event.actors]
    return words.CLAUSES[action][0].format(a=names[0], b=names[-1], side=event.side)


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


# ---------------------------------------------------------------- directions in the joint space


def encode_pictures(backbone: Backbone, scenes: Sequence[Scene]) -> Float[Tensor, "N E"]:
    parts = (scenes[start : start + BATCH_SIZE] for start in range(0, len(scenes), BATCH_SIZE))
    vectors = [backbone.encode_images([scene.picture() for scene in part]) for part in parts]
    return F.normalize(torch.from_numpy(np.concatenate(vectors)), dim=1)


def encode_texts(backbone: Backbone, texts: Sequence[str]) -> Float[Tensor, "N E"]:
    parts = (texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE))
    vectors = [text.sentence for part in parts for text in backbone.encode_texts(part)]
    return F.normalize(torch.from_numpy(np.stack(vectors)), dim=1)


# ---------------------------------------------------------------- the card


def write_card(folder: Path, num_stills: int = NUM_STILLS) -> str:
    """Measures the model in `folder` and writes its README.md; returns the text."""
    training = Training.read(folder)
    backbone = load_backbone(f"{LOCAL}{folder}")
    text = card(training, backbone.fingerprint, Weights.of(folder), zero_shot_figures(backbone, num_stills))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


@dataclass(frozen=True, kw_only=True)
class Weights:
    num_parameters: int
    num_bytes: int

    @classmethod
    def of(cls, folder: Path) -> "Weights":
        (path,) = weight_files(folder)
        return cls(
            num_parameters=sum(weight.numel() for weight in load_file(path).values()), num_bytes=path.stat().st_size
        )


def card(training: Training, fingerprint: Fingerprint, weights: Weights, figures: Figures) -> str:
    """The model card in the format of the Hugging Face hub."""
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

A CLIP small enough to train on a CPU and to keep in a repository. It stands in for a real one wherever no weights can
be downloaded: in midreel's tests and in its demo. The folder is in the Hugging Face format, so whatever loads a CLIP
loads it.

This card was written by the tool that trained the model; every figure on it was measured.

## The model

| | |
|---|---|
| architecture | {fingerprint.backbone} |
| image | {fingerprint.image_size} by {fingerprint.image_size} pixels |
| text | up to {fingerprint.context_length} tokens, byte pairs of the playhouse's own sentences |
| joint space | {fingerprint.width} dimensions |
| parameters | {weights.num_parameters:,} |
| weights | {weights.num_bytes / 1e6:.1f} MB |
| sha256 of the weights | `{fingerprint.weights}` |

## Training

From nothing, on {num_stills:,} stills: {training.stills_per_video} instants of each of {training.num_videos:,} videos
of the playhouse (`midreel.datasets.playhouse`, split "stills", seed {TRAIN_SEED}), drawn and captioned by its
generator, version {training.playhouse_version}. Most captions say what the still shows; some tell of the event that it
was taken from, as captions on the web do.

{training.steps:,} steps of {training.batch_size} stills took {training.seconds:,.0f} s, drawing included. In the first
{training.naming_share:.0%} of them the image encoder alone learns to name the things in a still, by a linear head that
is thrown away in the end. Then both encoders learn by CLIP's contrastive loss, which ended at
{training.final_loss:.3f}, and the head goes on beside it. Contrast alone hardly teaches what things look like, for
backdrops and colours tell most stills apart.

```sh
{command}
```

## Figures

All in percent, on one still of each video of seed {TEST_SEED} (generator version {playhouse.VERSION}), none of which
was trained on. Frames go the way of any video's: {width} by {height} pixels, resized and cropped as the folder says.

Retrieval. The caption names all who are in view and the backdrop; it counts as right for every still that shows the
same, whatever the words, and ties count against the model.

{to_markdown(figures.retrieval, digits={"among": 0}, corner="find the")}
Zero-shot choice. A thing and its colour are asked of stills with one actor in view; their prompts, and those of
backdrops, are made of all the playhouse's words for them and averaged.

{to_markdown(figures.choices, digits={"stills": 0}, corner="choose")}
The last rows ask which of two sentences about the still's own actors is true. "Above" and "below" show in the still.
What enters and what leaves can differ in where it faces. What rises and what falls passes the same places in the same
pose: no model that sees one still can tell, and a figure far from chance would be a flaw of the measurement.

## Limits

- It knows the playhouse's drawings of {len(words.THING_WORDS)} things in {len(words.COLOUR_WORDS)} colours on
  {len(words.BACKDROP_WORDS)} backdrops, and the {len(words.vocabulary())} words of its sentences. Any text can be
  encoded, and any photograph, but what comes out means nothing.
- It sees stills. What only time reveals is for the model that is trained on its features.
- No figure of it says anything about a CLIP that was trained on photographs.

## Use

```python
from midreel.features import load_backbone

backbone = load_backbone("{LOCAL}PATH/TO/THIS/FOLDER")
```
"""
