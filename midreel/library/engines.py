"""The engines of a library: make the ONNX form of its model, and compare what both engines compute."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from midreel.errors import BadModel
from midreel.features.backbones.base import load_backbone
from midreel.library import confidence, encoder
from midreel.library.writer import Writer

TOLERANCE = 1e-4  # the largest difference of a number in a vector
_NUM_SENTENCES, _NUM_IMAGES = 64, 8


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was made and compared.

    Attributes:
        model: The largest difference of each graph of the model from torch. Empty if the model needs none.
        backbone: The largest difference of the vectors of texts and images, of onnxruntime from torch.
    """

    model: dict[str, float]
    backbone: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"model": self.model, "backbone": self.backbone}

    @property
    def text(self) -> str:
        """The differences, for people."""
        lines = [f"backbone, {name}: differs from torch by at most {most:.1e}" for name, most in self.backbone.items()]
        if not self.model:
            return "\n".join([*lines, "model: needs numpy only"])
        return "\n".join(
            [*lines, *(f"{name}: differs from torch by at most {most:.1e}" for name, most in self.model.items())]
        )


def export(library: Writer) -> Exported:
    """Make the ONNX form of a library's model if it needs one, and compare backbone and model with torch.

    Raises:
        BadModel: An engine differs from torch by more than `TOLERANCE`.
        BadPackage: torch is not installed.
    """
    compared = compare_backbone(library.settings.backbone)
    if encoder.is_untrained(library.generation):
        return Exported(model={}, backbone=compared)
    differences = encoder.make_form(library.generation)
    library.storage.save_model(library.generation)
    return Exported(model=differences, backbone=compared)


def can_make() -> bool:
    """Return whether the packages that make an ONNX form are installed."""
    return all(find_spec(name) is not None for name in ("torch", "onnx", "onnxscript"))


def compare_backbone(spec: str) -> dict[str, float]:
    """Return the largest difference of the vectors of texts and of images between onnxruntime and torch.

    Raises:
        BadModel: A difference is above `TOLERANCE`.
        BadPackage: torch is not installed.
        BadSetting: onnxruntime cannot compute the backbone.
    """
    ours, torch = load_backbone(spec, engine="onnx"), load_backbone(spec, engine="torch")
    sentences = confidence.background_sentences()[:_NUM_SENTENCES]
    images = [
        np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8) for seed in range(_NUM_IMAGES)
    ]
    pairs = zip(ours.encode_texts(sentences), torch.encode_texts(sentences), strict=True)
    parts = [part for a, b in pairs for part in (a.words - b.words, a.sentence - b.sentence)]
    texts = max(float(np.abs(part).max()) for part in parts)
    found = {"texts": texts, "images": float(np.abs(ours.encode_images(images) - torch.encode_images(images)).max())}
    if max(found.values()) > TOLERANCE:
        raise BadModel(
            f"onnxruntime and torch differ by {max(found.values()):.1e} for {spec}, expected at most {TOLERANCE:.0e}. "
            f"Use --engine torch."
        )
    return found
