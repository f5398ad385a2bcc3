"""Small inputs for the tests of methods, and a training of any method that can be interrupted."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from midreel.evaluation.evaluate import evaluate
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import fit
from tests.training.worlds import WIDTH, World

M = TypeVar("M", bound=Method)

# ---------------------------------------------------------------- any method

TRAINED = [name for name, method in METHODS.items() if method.losses is not Method.losses]
# A method takes those that it has. All parts of a loss start in the second epoch at the latest.
SMALL: dict[str, Any] = {
    "video_width": WIDTH,
    "text_width": WIDTH,
    "teacher_width": WIDTH,
    "joint_width": WIDTH,
    "width": WIDTH,
    "num_heads": 2,
    "num_frames": 12,
    "num_clips": 6,
    "max_words": 9,
    "min_clips": 2,
    "num_prototypes": 5,
    "num_steps": 6,
    "hard_from_epoch": 1,
    "matching_from_epoch": 1,
    "ambiguity_from_epoch": 1,
}


def small_config(name: str, **settings: Any) -> Any:
    """Return a small config of any method."""
    make = METHODS[name].Config
    known = {field.name for field in dataclasses.fields(make)}
    return make(**{setting: value for setting, value in SMALL.items() if setting in known} | settings)


def perturbed(method: M) -> M:
    """Return the method with large weights, which make errors visible, for evaluation."""
    with torch.no_grad():
        for weight in method.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
    return method.eval()


# ---------------------------------------------------------------- training


def train(folder: Path, recipe: Recipe, world: World | None = None, **options: Any) -> None:
    """Train the method of a recipe on a small world, and validate it on the same videos."""
    torch.manual_seed(recipe.seed)
    method = METHODS[recipe.config.method](recipe.config)
    world = world or World()
    data = FeatureSet.prepare(method, world.split, world)

    def validate(trained: Any) -> dict[str, float]:
        return evaluate(trained, data.video_batches(4), data.query_batches(7), data.video_of_query).recalls

    fit(method, data, validate, recipe, folder, **options)


# ---------------------------------------------------------------- videos of width 10, words of width 6

VIDEO_OF_QUERY = torch.tensor([0, 0, 1, 2, 2, 3, 3])

STACKED_LENGTHS = torch.tensor([150, 128, 40, 1])


def stacked_videos() -> Tensor:
    """Return videos of the lengths STACKED_LENGTHS as one tensor."""
    return torch.randn(4, 150, 10, generator=torch.Generator().manual_seed(3))


def stacked_batch(method: Method) -> Batch:
    """Return these videos with short queries."""
    words = torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(2))
    return Batch(
        videos=method.prepare_videos(stacked_videos(), STACKED_LENGTHS),
        queries=QueryBatch(words=words, mask=torch.arange(5) < torch.tensor([2, 3, 4, 5, 5, 2, 3])[:, None]),
        video_of_query=VIDEO_OF_QUERY,
    )


RAGGED_LENGTHS = [300, 8, 5, 1]
RAGGED_WORDS = [2, 3, 4, 12, 9, 3, 5]


def ragged_videos() -> list[Tensor]:
    """Return videos of the lengths RAGGED_LENGTHS."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(length, 10, generator=generator) for length in RAGGED_LENGTHS]


def ragged_sentences() -> list[Tensor]:
    """Return sentences with the numbers of words RAGGED_WORDS."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(length, 6, generator=generator) for length in RAGGED_WORDS]


def padded(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return sequences as one tensor that is padded with NaN, and their lengths."""
    lengths = torch.tensor([len(part) for part in parts])
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=torch.nan), lengths


def ragged_batch(method: Method) -> Batch:
    """Return these videos and sentences as a batch."""
    frames, num_frames = padded(ragged_videos())
    words, num_words = padded(ragged_sentences())
    return Batch(
        videos=method.prepare_videos(frames.nan_to_num(), num_frames),
        queries=QueryBatch(words=words, mask=torch.arange(words.shape[1]) < num_words[:, None]),
        video_of_query=VIDEO_OF_QUERY,
    )


def doubled(data: Batch) -> Batch:
    """Return a batch in double precision."""
    clips = data.videos.clips if data.videos.clips is None else data.videos.clips.double()
    return dataclasses.replace(
        data,
        videos=dataclasses.replace(data.videos, frames=data.videos.frames.double(), clips=clips),
        queries=dataclasses.replace(data.queries, words=data.queries.words.double()),
    )
