"""The method that a word or a folder stands for: trained, and then on such features as are there; or untrained."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from midreel.errors import NEAR, BadModel, FingerprintMismatch
from midreel.features.backbones.base import Fingerprint
from midreel.io.folders import in_sight
from midreel.methods import load_method
from midreel.methods.base import Method
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig

ZERO_SHOT, ZERO_SHOT_CLIPS = "zero-shot", "zero-shot-clips"
# What needs no training: the best frame decides, as in the paper's row, and clips are of equal length as the base
# model's; or frames and clips are cut, weighed and mixed as in the paper's method.
UNTRAINED: dict[str, dict[str, Any]] = {
    ZERO_SHOT: {},
    ZERO_SHOT_CLIPS: {"clips": "order_preserving", "clip_weight": 0.4},
}
DATA = "data.json"  # what a run, and the model that came out of it, was made from


def load_model(
    model: str, fingerprint: Fingerprint, *, where: Path, again: str, sizes: Mapping[str, Any] | None = None
) -> Method:
    """The method in a run's folder or a model's own, which must have been trained on features of this fingerprint; or
    untrained, of these `sizes`.

    `where` the features are, and `again` with which command others are made, is for whoever has the wrong ones.
    """
    if model in UNTRAINED:
        return ClipZeroShot(ClipZeroShotConfig(width=fingerprint.joint_width, **(sizes or {}), **UNTRAINED[model]))
    folder = model_folder(model, f"or one of the words {', '.join(UNTRAINED)}")
    method = load_method(folder)
    trained = trained_on(folder)
    width = getattr(method.config, "video_width", fingerprint.width)
    if trained is None and width != fingerprint.width:
        raise FingerprintMismatch(
            f"{folder} takes features of width {width}, but those in {where} have {fingerprint.width}; use those that "
            f"it was trained on, which it does not name"
        )
    differences = trained.difference(fingerprint) if trained is not None else []
    if trained is not None and differences:
        raise FingerprintMismatch(
            f"{folder} was trained on other features than those in {where} (there != here): "
            f"{'; '.join(differences)}; {_remedy(trained, again)}"
        )
    return method


def _remedy(trained: Fingerprint, again: str) -> str:
    """What one backbone made can be made again; what was published, or joined of several, has to be found."""
    if trained.source and trained.frame_rate is not None and " + " not in trained.source:
        return f"{again} --backbone {trained.source} --rate {trained.frame_rate:g}"
    return f"use those that it was trained on: {trained.source or trained.backbone}"


def model_folder(model: str | Path, otherwise: str = "") -> Path:
    """Where a model's files are: in a run's folder best/, or in the folder itself. `otherwise` is for the message."""
    for path in (in_sight(Path(model) / "best"), Path(model)):
        if (path / "config.json").is_file():
            return path
    expected = ["the folder of a run that has finished an epoch", "the folder of a model", otherwise]
    near = get_close_matches(str(model), UNTRAINED, n=1, cutoff=NEAR) if otherwise else []
    remedy = f"did you mean {near[0]}?" if near else "train one: midreel train"
    raise BadModel(f"{model} holds no model, expected {', '.join(filter(None, expected))}; {remedy}")


def trained_on(folder: Path) -> Fingerprint | None:
    """Of the features that a model has seen, where it says which they were."""
    path = folder / DATA
    try:
        card = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if "fingerprint" not in card:
            return None
    except (ValueError, TypeError) as error:
        raise BadModel(
            f"{path} is not JSON ({error}), expected what the model was trained on; copy the model again"
        ) from error
    return Fingerprint.from_json(json.dumps(card["fingerprint"]))
