"""Load a model by name or folder, and check that it was trained on the given features."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from midreel.features.backbones.base import Fingerprint
from midreel.methods import METHODS, load_method
from midreel.methods.base import Method, feature_widths
from midreel.methods.model_files import UNTRAINED, expect_features, model_folder


def load_model(
    model: str, fingerprint: Fingerprint, *, where: Path | str, again: str, sizes: Mapping[str, Any] | None = None
) -> Method:
    """Return the model with this name or in this folder.

    Args:
        model: the folder of a run or of a model, or a name in `UNTRAINED`.
        fingerprint: the fingerprint of the features. The model must be trained on such features.
        where: the place of the features, for messages.
        again: how to extract other features, for messages. The options of the backbone are appended.
        sizes: settings of an untrained model. Those that its method does not have are ignored.

    Raises:
        BadModel: there is no model, or it cannot be read.
        FingerprintMismatch: the model was trained on other features.
    """
    if model in UNTRAINED:
        return _untrained(UNTRAINED[model], fingerprint.joint_width, sizes or {})
    folder = model_folder(model, f"or one of {', '.join(UNTRAINED)}")
    method = load_method(folder)
    expect_features(folder, feature_widths(method.config), fingerprint, where=where, again=again)
    return method


def _untrained(settings: Mapping[str, Any], width: int, sizes: Mapping[str, Any]) -> Method:
    """Return an untrained model for features whose joint space has this width."""
    make = METHODS[settings["method"]]
    known = {field.name for field in fields(make.Config)}
    fitting = {name: value for name, value in sizes.items() if name in known}
    return make(make.Config(width=width, **fitting, **settings))
