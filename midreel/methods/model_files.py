"""The files of a model: its folder, the features that it was trained on, and the models without files. No torch."""

import hashlib
import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from midreel.errors import NEAR, BadModel, FingerprintMismatch
from midreel.features.backbones.base import Fingerprint
from midreel.io.folders import readable_folder
from midreel.io.hub import model_path
from midreel.ops.edges import EdgeCalibration

ZERO_SHOT, ZERO_SHOT_CLIPS, TF_PRVR = "zero-shot", "zero-shot-clips", "tf-prvr"
# Settings of models that need no training, with the name of their method. "zero-shot" ranks by the best frame, as in
# the paper's table. "zero-shot-clips" cuts clips and weights the branches as MSC does.
UNTRAINED: dict[str, dict[str, Any]] = {
    ZERO_SHOT: {"method": "clip_zero_shot"},
    ZERO_SHOT_CLIPS: {"method": "clip_zero_shot", "clips": "order_preserving", "clip_weight": 0.4},
    TF_PRVR: {"method": "tf_prvr"},
}
DATA = "data.json"  # the dataset and features that a run, and its model, used
MODEL_FILES = ("config.json", "model.safetensors")
VIDEO_ENCODER, QUERY_ENCODER, FACTS = "video_encoder.onnx", "query_encoder.onnx", "encoders.json"
FORM = (VIDEO_ENCODER, QUERY_ENCODER, FACTS)  # the ONNX form of a model
STATISTICS = "statistics.json"  # of the features that a model was trained on, for midreel diagnose
EDGES = "edges.json"  # how precisely a model finds the start and end of a moment


def model_folder(model: str | Path, otherwise: str = "") -> Path:
    """Return the folder of a model's files: best/ in the folder of a run, or the folder itself.

    Args:
        model: the folder of a run or of a model, or OWNER/NAME of the hub, which is downloaded unless it is cached.
        otherwise: a further kind of model that the caller accepts, for the message.

    Raises:
        BadModel: there is no model.
    """
    model = model_path(str(model))
    for path in (readable_folder(Path(model) / "best"), Path(model)):
        if (path / "config.json").is_file():
            return path
    expected = ["the folder of a run that has finished an epoch", "the folder of a model", otherwise]
    near = get_close_matches(str(model), UNTRAINED, n=1, cutoff=NEAR) if otherwise else []
    remedy = f"Did you mean {near[0]}?" if near else "Train one: midreel train"
    problem = "is not a model" if Path(model).exists() else "does not exist"
    raise BadModel(f"{model} {problem}, expected {', '.join(filter(None, expected))}. {remedy}")


def trained_on(folder: Path) -> Fingerprint | None:
    """Return the fingerprint of the features that a model was trained on, or None if it was not recorded.

    Raises:
        BadModel: data.json is damaged.
    """
    path = folder / DATA
    try:
        card = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if "fingerprint" not in card:
            return None
    except (ValueError, TypeError) as error:
        raise BadModel(f"{path} is not JSON ({error}). Copy the model again.") from error
    return Fingerprint.from_json(json.dumps(card["fingerprint"]))


def edge_calibration(folder: Path) -> EdgeCalibration | None:
    """Return how wide the ranges of starts and ends are for a model, or None if it was not measured.

    Raises:
        BadModel: edges.json is damaged.
    """
    path = folder / EDGES
    try:
        return EdgeCalibration.from_dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    except (ValueError, TypeError, KeyError) as error:
        raise BadModel(f"{path} is damaged ({error}). Copy the model again, or delete the file.") from error


def model_digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the files of a model. It does not depend on the folder, nor on the ONNX form."""
    found = hashlib.sha256()
    for name in MODEL_FILES:
        found.update(f"{name} {len(files[name])} ".encode())
        found.update(files[name])
    return f"sha256:{found.hexdigest()}"


def expect_features(
    folder: Path, widths: Collection[int], fingerprint: Fingerprint, *, where: Path | str, again: str
) -> None:
    """Raise FingerprintMismatch unless the model in a folder was trained on features like the given ones.

    Args:
        folder: the folder of the model.
        widths: the widths of features that the model accepts. Empty: any.
        fingerprint: the fingerprint of the features.
        where: the place of the features, for messages.
        again: how to extract other features, for messages. The options of the backbone are appended.
    """
    trained = trained_on(folder)
    if trained is None and widths and fingerprint.width not in widths:
        raise FingerprintMismatch(
            f"{folder} expects features of width {' or '.join(map(str, widths))}, but {where} has width "
            f"{fingerprint.width}. Use the features that it was trained on, which it does not name."
        )
    if trained is not None and (differences := trained.difference(fingerprint)):
        raise FingerprintMismatch(
            f"{folder} was trained on other features than those in {where} (model != features): "
            f"{'; '.join(differences)}. {_remedy(trained, again)}"
        )


def _remedy(trained: Fingerprint, again: str) -> str:
    """Return how to get the features of a model. Only features of a single backbone can be extracted again."""
    if trained.source and trained.frame_rate is not None and " + " not in trained.source:
        return f"{again[:1].upper()}{again[1:]} --backbone {trained.source} --rate {trained.frame_rate:g}"
    return f"Use the features that it was trained on: {trained.source or trained.backbone}"
