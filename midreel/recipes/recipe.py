"""A recipe: all settings of one training run, as one value that is saved with the run."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from midreel.errors import BadSetting, MidreelError
from midreel.methods import METHODS
from midreel.methods.base import check_settings

Selection = Literal["val", "holdout"]
Precision = Literal["fp32", "bf16"]
Schedule = Literal["warmup_linear", "warmup_cosine"]
MOST = 1 << 31  # the limit of every count

# Settings that recipes of several methods share.
CLIP_L14 = {"video_width": 768, "text_width": 768}
PLAYHOUSE = {
    "video_width": 128,
    "text_width": 128,
    "num_frames": 32,
    "num_clips": 8,
    "max_words": 40,
    "width": 128,
    "input_dropout": 0.1,
    "dropout": 0.1,
    "hard_from_epoch": 6,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training. The defaults are those that the paper shares between datasets.

    Attributes:
        config: The settings of the method. Its field `method` names the method.
        lr: The peak learning rate.
        batch_size: The number of videos in a batch, which has all their queries.
        epochs: The largest number of epochs.
        patience: Training ends when more than this many epochs in a row do not improve SumR.
        warmup: The share of all steps in which the learning rate rises.
        schedule: How the learning rate falls after the warm-up: linearly, or as half a cosine.
        weight_decay: The weight decay.
        seed: The seed of all random numbers.
        selection: The videos on which the best epoch is chosen. "val": the split val, as the released code does.
            "holdout": a part of the training videos.
        holdout: The share of the training videos to hold out.
        precision: The precision of the encoders in training.
        features: The kind of features, a name of `features.kinds.KINDS`; "" if unknown. It is not compared, because
            the widths of the features in `config` are.

    Raises:
        BadSetting: A setting is out of range.
    """

    config: Any
    lr: float
    batch_size: int = 128
    epochs: int = 100
    patience: int = 10
    warmup: float = 0.01
    schedule: Schedule = "warmup_linear"
    weight_decay: float = 0.01
    seed: int = 9527
    selection: Selection = "val"
    holdout: float = 0.1
    precision: Precision = "fp32"
    features: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_settings(self)
        for name, least in (("batch_size", 1), ("epochs", 1), ("patience", 0), ("seed", 0)):
            if not least <= getattr(self, name) < MOST:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected {least} to {MOST - 1:,}.")
        if self.lr <= 0:
            raise BadSetting(f"lr is {self.lr}, expected a number above 0. Try 2.5e-4.")
        if self.weight_decay < 0:
            raise BadSetting(f"weight_decay is {self.weight_decay}, expected 0 or more. Try 0.01.")
        for name in ("holdout", "warmup"):
            if not 0 < getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected a share between 0 and 1. Try 0.1.")

    def to_json(self) -> str:
        """Return the content of a recipe.json."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Return the recipe of a recipe.json.

        Raises:
            BadSetting: The text is not a recipe.
            UnknownName: The method of the recipe does not exist.
        """
        try:
            settings = json.loads(text)
            name = settings["config"]["method"]
            return cls(**settings | {"config": METHODS[name].Config(**settings["config"])})
        except MidreelError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise BadSetting(
                f"the recipe is damaged or from another version of midreel ({type(error).__name__}: {error}). "
                f"Restore the recipe.json of the run."
            ) from error

    def difference(self, other: "Recipe") -> list[str]:
        """Return the settings that differ, as "name: this, that". The name of the features is not compared.

        Of recipes of two methods, only the names of the methods are returned: their settings cannot be compared.
        """
        mine, theirs = _flat(self), _flat(other)
        if mine["config.method"] != theirs["config.method"]:
            return [f"config.method: {mine['config.method']}, {theirs['config.method']}"]
        return [
            f"{key}: {mine.get(key)}, {theirs.get(key)}"
            for key in sorted(mine | theirs)
            if mine.get(key) != theirs.get(key)
        ]


def _flat(recipe: Recipe) -> dict[str, Any]:
    own = {each.name: getattr(recipe, each.name) for each in fields(recipe) if each.compare and each.name != "config"}
    return own | {f"config.{key}": value for key, value in asdict(recipe.config).items()}
