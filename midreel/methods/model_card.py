"""The model card: README.md of a model folder. It states recorded facts only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midreel.features.backbones.base import source_for_others

TAGS = ("video-retrieval", "partially-relevant-video-retrieval")
LICENCE = """midreel is under the Apache License 2.0. The authors of the weights choose their licence, which may depend
on the backbone and on the videos. Add `license:` to the head of this file."""
RECONSTRUCTION = """**Reconstruction.** No code of this paper was released. The method follows the text of the paper and
fills its gaps with choices of midreel, so the figures of the paper do not apply to this model."""
# The labels of a fingerprint's fields. Only programs need the other fields.
LABELS = {
    "backbone": "backbone",
    "weights": "backbone weights",
    "frame_rate": "frames per second",
    "width": "frame width",
    "word_width": "word width",
    "sentence_width": "sentence width",
    "context_length": "maximum tokens of a sentence",
}


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper that a method implements.

    Attributes:
        method: the name of the method as the paper spells it.
        title: the title of the paper.
        bibtex: the BibTeX entry of the paper.
    """

    method: str
    title: str
    bibtex: str


def model_card(
    paper: Paper,
    config: Any,
    num_weights: int,
    *,
    reconstruction: bool = False,
    recipe: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
) -> str:
    """Return the model card in the format of the Hugging Face hub.

    Args:
        paper: the paper of the method.
        config: the settings of the method, a dataclass.
        num_weights: the number of weights of the model.
        reconstruction: whether the method is a reconstruction from the text of its paper.
        recipe: the settings of the training run.
        data: the dataset and features of the training run.
        record: the epoch and metrics of the best epoch.
    """
    settings = asdict(config)
    sections = [
        front_matter(settings["method"]),
        _summary(paper, settings, num_weights, trained=recipe is not None),
        RECONSTRUCTION if reconstruction else "",
        _features(settings, (data or {}).get("fingerprint")),
        _training(recipe, data or {}),
        _figures(recipe or {}, record),
        "## Settings\n\n" + _table(settings),
        f"## Licence\n\n{LICENCE}",
        f"## Citation\n\n```bibtex\n{paper.bibtex}\n```",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def front_matter(method: str) -> str:
    """Return the metadata that the hub sorts models by. It states no licence, because a program cannot grant one."""
    tags = "\n".join(f"- {tag}" for tag in (*TAGS, method))
    return f"---\nlibrary_name: midreel\ntags:\n{tags}\n---"


def _summary(paper: Paper, settings: Mapping[str, Any], num_weights: int, *, trained: bool) -> str:
    variant = f", in the variant `{settings['variant']}`" if "variant" in settings else ""
    return f"""# {paper.method}{", trained with midreel" if trained else ""}

Finds videos, and the moments in them, from a sentence that describes any part of them. The method is {paper.method}
("{paper.title}"){variant}. The model has {num_weights:,} weights.

```python
import midreel

method = midreel.load_method("PATH/TO/THIS/FOLDER")
```"""


def _features(settings: Mapping[str, Any], fingerprint: Mapping[str, Any] | None) -> str:
    if fingerprint is None:
        widths = {name: settings[name] for name in ("video_width", "text_width", "width") if name in settings}
        known = ", ".join(f"`{name}` {width}" for name, width in widths.items())
        return f"## Features\n\nThe features of the training data were not recorded. The settings say: {known}."
    rows = {label: fingerprint[name] for name, label in LABELS.items() if fingerprint.get(name) is not None}
    if source := source_for_others(str(fingerprint.get("source", ""))):
        rows["loaded from"] = source
    return "## Features\n\nThe model needs features of exactly this kind:\n\n" + _table(rows)


def _training(recipe: Mapping[str, Any] | None, data: Mapping[str, Any]) -> str:
    if recipe is None:
        return "## Training\n\nThe training was not recorded."
    counts = {kind: data[kind] for kind in ("videos", "queries") if isinstance(data.get(kind), Mapping)}
    splits = list(next(iter(counts.values()), {}))
    lines = ["| split | " + " | ".join(counts) + " |", "|---" * (1 + len(counts)) + "|"]
    lines += [f"| {split} | " + " | ".join(f"{count[split]:,}" for count in counts.values()) + " |" for split in splits]
    files = data.get("annotations", {})
    named = "".join(f"\n- `{name}`, SHA-256 `{digest}`" for name, digest in files.items())
    parts = [
        "\n".join(lines) if counts else "",
        f"Annotations:\n{named}" if files else "",
        "The recipe:",
        _table({name: value for name, value in recipe.items() if name != "config"}),
    ]
    return "## Training\n\n" + "\n\n".join(part for part in parts if part)


def _figures(recipe: Mapping[str, Any], record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "## Figures\n\nNot measured. Run `midreel evaluate`."
    where = {
        "val": "On `val` (or `test`, without it), where the epoch was chosen. Expect lower figures on other videos.",
        "holdout": "On training videos that were held out to choose the epoch. Expect lower figures on other videos.",
    }.get(recipe.get("selection", ""), "On the videos that the epoch was chosen on.")
    figures = {name: f"{value:.2f}" for name, value in record["metrics"].items()}
    epoch = "without training" if record["epoch"] is None else f"after epoch {record['epoch']}, counted from 0"
    return f"## Figures\n\n{where}\nIn percent, {epoch}.\n\n" + _table(figures)


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
