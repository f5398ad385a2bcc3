"""Export a trained model: its weights, its model card and, optionally, its encoders as ONNX graphs."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.errors import BadModel
from midreel.features.backbones.base import source_for_others
from midreel.io.files import write_durably
from midreel.io.folders import expect_new, replacing
from midreel.methods import load_method
from midreel.methods import onnx as onnx_export
from midreel.methods.model_files import DATA, EDGES, STATISTICS, UNTRAINED, model_folder
from midreel.methods.released import PROVENANCE
from midreel.training.fit import METRICS, RECIPE, known_of

CARD = "README.md"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export.

    Attributes:
        folder: The folder of the exported model.
        differences: The largest difference of each ONNX graph from torch. Empty without ONNX.
    """

    folder: Path
    differences: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        files = sorted(path.name for path in self.folder.iterdir())
        return {"model": str(self.folder), "files": files, "differences": dict(self.differences)}

    @property
    def text(self) -> str:
        """The result, for people."""
        checked = [f"{name}: differs from torch by at most {most:.1e}" for name, most in self.differences.items()]
        return "\n".join([*checked, f"model: {self.folder}"])


def export_model(model: Path, out: Path, *, onnx: bool = False) -> Exported:
    """Copy a model into a new folder, with a model card.

    Args:
        model: A run folder or a model folder.
        out: The folder to write: new or empty.
        onnx: Also write the encoders as ONNX graphs, and compare them with torch.

    Raises:
        BadModel: `model` is not a model or is damaged, or an ONNX graph differs too much.
        Unwritable: `out` is not empty, or cannot be written.
    """
    if str(model) in UNTRAINED and not model.exists():
        raise BadModel(
            f"{model} has no folder, because its width depends on the backbone. Export it from a library that uses it: "
            f"LIBRARY/generations/N/model"
        )
    folder = model_folder(model)
    expect_new(out)
    method, known, differences = load_method(folder), _for_others(known_of(folder)), {}
    with replacing(out) as new:
        # An imported model has a card that names its origin, so it is copied. Other cards are generated.
        cards = [CARD] if (folder / PROVENANCE).is_file() else []
        for name in (METRICS, RECIPE, EDGES, STATISTICS, PROVENANCE, *cards):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, new / name)
        if "data" in known:
            write_durably(new / DATA, json.dumps(known["data"], indent=2, sort_keys=True) + "\n")
        method.save_pretrained(new, model_card_kwargs=known)
        if onnx:
            fingerprint = known.get("data", {}).get("fingerprint")
            differences = onnx_export.write_encoders(method, new, fingerprint)
            with (new / CARD).open("a", encoding="utf-8") as card:
                card.write(_section(differences))
    return Exported(folder=out, differences=differences)


def _for_others(known: dict[str, Any]) -> dict[str, Any]:
    """Remove the local path of the backbone. The hash of its weights still identifies it."""
    data = known.get("data", {})
    if "fingerprint" not in data:
        return known
    fingerprint = data["fingerprint"]
    source = source_for_others(fingerprint.get("source", ""))
    return known | {"data": data | {"fingerprint": fingerprint | {"source": source}}}


def _section(differences: Mapping[str, float]) -> str:
    lines = [f"| `{name}` | {most:.1e} |" for name, most in differences.items()]
    return "\n".join(
        [
            "",
            "## ONNX",
            "",
            f"The encoders, for programs without torch. `{onnx_export.FACTS}` describes their inputs and outputs.",
            "Largest difference from torch, measured with onnxruntime during the export:",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
        ]
    )
