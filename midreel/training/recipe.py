"""A recipe: everything that decides how a method is trained, as one value that is saved with the run."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from midreel.errors import BadSetting, UnknownName
from midreel.methods import METHODS
from midreel.methods.base import check_settings

Selection = Literal["val", "holdout"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Defaults are those that the paper's datasets share."""

    config: Any  # of the method; its `method` field names it
    lr: float
    batch_size: int = 128  # videos; all their queries come along
    epochs: int = 100
    patience: int = 10  # epochs without a better SumR before training stops
    warmup: float = 0.01  # share of all steps
    weight_decay: float = 0.01
    seed: int = 9527
    # Where the epoch is chosen. val: on the split that is reported, as in the release. holdout: on training videos.
    selection: Selection = "val"
    holdout: float = 0.1  # share of the training videos
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected at least 1")
        if not 0 < self.holdout < 1:
            raise BadSetting(f"holdout is {self.holdout}, expected a share between 0 and 1, such as 0.1")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        settings = json.loads(text)
        name = settings["config"].get("method")
        if name not in METHODS:
            raise UnknownName.among("method", name, METHODS)
        return cls(**settings | {"config": METHODS[name].Config(**settings["config"])})

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
