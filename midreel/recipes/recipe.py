"""A recipe: everything that decides how a method is trained, as one value that is saved with the run."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from midreel.errors import BadSetting, MidreelError
from midreel.methods import METHODS
from midreel.methods.base import check_settings

Selection = Literal["val", "holdout"]
Precision = Literal["fp32", "bf16"]
MOST = 1 << 31  # of anything that is counted

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
    """Defaults are those that the paper's datasets share."""

    config: Any  # of the method; its `method` field names it
    lr: float  # Highest learning rate.
    batch_size: int = 128  # Videos per step, with all their queries.
    epochs: int = 100  # Maximum number of epochs.
    patience: int = 10  # Training stops after more than this many epochs in a row without a better SumR.
    warmup: float = 0.01  # Share of all steps in which the learning rate rises.
    weight_decay: float = 0.01  # Weight decay of BertAdam.
    seed: int = 9527  # Seed of all random numbers.
    # Where the best epoch is chosen: on the split val, as the released code does, or on held-out training videos.
    selection: Selection = "val"
    holdout: float = 0.1  # Share of the training videos that selection=holdout sets aside.
    precision: Precision = "fp32"  # Number format of the forward pass.

    def __post_init__(self) -> None:
        check_settings(self)
        for name, least in (("batch_size", 1), ("epochs", 1), ("patience", 0), ("seed", 0)):
            if not least <= getattr(self, name) < MOST:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected {least} to {MOST - 1:,}")
        if self.lr <= 0:
            raise BadSetting(f"lr is {self.lr}, expected more than 0, such as 2.5e-4")
        if self.weight_decay < 0:
            raise BadSetting(f"weight_decay is {self.weight_decay}, expected 0 or more, such as 0.01")
        for name in ("holdout", "warmup"):
            if not 0 < getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected a share between 0 and 1, such as 0.1")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        try:
            settings = json.loads(text)
            name = settings["config"]["method"]
            return cls(**settings | {"config": METHODS[name].Config(**settings["config"])})
        except MidreelError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise BadSetting(
                f"a recipe cannot be read ({type(error).__name__}: {error}), expected what a run wrote in its "
                f"recipe.json; was it made by another midreel?"
            ) from error

    def difference(self, other: "Recipe") -> list[str]:
        """What the two set differently, as "field: this, that"."""
        mine, theirs = _flat(self), _flat(other)
        return [
            f"{key}: {mine.get(key)}, {theirs.get(key)}"
            for key in sorted(mine | theirs)
            if mine.get(key) != theirs.get(key)
        ]


def _flat(recipe: Recipe) -> dict[str, Any]:
    own = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name != "config"}
    return own | {f"config.{key}": value for key, value in asdict(recipe.config).items()}
