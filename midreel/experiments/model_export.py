"""A trained model as a folder for others: its weights, its card and, if wanted, its encoders as ONNX graphs."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.features.backbones.base import source_for_others
from midreel.io.files import write_durably
from midreel.io.folders import expect_new, replacing
from midreel.methods import load_method
from midreel.methods import onnx as onnx_export
from midreel.methods.loading import DATA, model_folder
from midreel.methods.released import PROVENANCE
from midreel.training.fit import METRICS, RECIPE, known_of

CARD = "README.md"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A folder that was written, and how far each ONNX graph is from the model, where there are any."""

    folder: Path
    differences: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        files = sorted(path.name for path in self.folder.iterdir())
        return {"model": str(self.folder), "files": files, "differences": dict(self.differences)}

    @property
    def text(self) -> str:
        checked = [f"{name}: differs from torch by at most {most:.1e}" for name, most in self.differences.items()]
        return "\n".join([*checked, f"model: {self.folder}"])


def export_model(model: Path, out: Path, *, onnx: bool = False) -> Exported:
    """Copies the model of a run, or a model's folder, into a new folder that says all that is known of it."""
    folder = model_folder(model)
    expect_new(out)
    method, known, differences = load_method(folder), _for_others(known_of(folder)), {}
    with replacing(out) as new:
        # The card of an imported model says where it comes from; that of any other is made of what lies beside it.
        cards = [CARD] if (folder / PROVENANCE).is_file() else []
        for name in (METRICS, RECIPE, PROVENANCE, *cards):
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
    """Without the place of the backbone on this disk; its weights' hash tells which it is."""
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
            f"The encoders as graphs, for programs without torch; `{onnx_export.FACTS}` says what they take and give.",
            "Largest difference from torch, measured with onnxruntime when they were written:",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
        ]
    )
