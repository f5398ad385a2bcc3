"""The model card, README.md of a model's folder: what is known of the model, and nothing that is not."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midreel.features.backbones.base import source_for_others

TAGS = ("video-retrieval", "partially-relevant-video-retrieval")
LICENCE = """midreel, which made this model, is under the Apache License 2.0. The terms of the weights are for whoever
trained them to state, and may depend on the backbone and on the videos: add `license:` to the head of this file."""
# A model's features in words; what a fingerprint has beside these is of use to programs.
OF_FEATURES = {
    "backbone": "backbone",
    "weights": "its weights",
    "frame_rate": "frames per second",
    "width": "width of a frame",
    "word_width": "width of a word",
    "sentence_width": "width of a sentence",
    "context_length": "tokens of a sentence, at most",
}


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a method implements."""

    method: str
    title: str
    bibtex: str


def model_card(
    paper: Paper,
    config: Any,
    num_weights: int,
    *,
    recipe: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
) -> str:
    """The card in the format of the Hugging Face hub.

    `recipe`, `data` and `record` are what a run keeps: its settings, what it was trained on, its best epoch.
    """
    settings = asdict(config)
    sections = [
        front_matter(settings["method"]),
        _summary(paper, settings, num_weights, trained=recipe is not None),
        _features(settings, (data or {}).get("fingerprint")),
        _training(recipe, data or {}),
        _figures(recipe or {}, record),
        "## Settings\n\n" + _table(settings),
        f"## Licence\n\n{LICENCE}",
        f"## Citation\n\n```bibtex\n{paper.bibtex}\n```",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def front_matter(method: str) -> str:
    """What the hub sorts models by. It states no licence: a program cannot grant one."""
    tags = "\n".join(f"- {tag}" for tag in (*TAGS, method))
    return f"---\nlibrary_name: midreel\ntags:\n{tags}\n---"


def _summary(paper: Paper, settings: Mapping[str, Any], num_weights: int, *, trained: bool) -> str:
    variant = f", in the variant `{settings['variant']}`" if "variant" in settings else ""
    return f"""# {paper.method}{", trained with midreel" if trained else ""}

Finds videos, and the moments in them, by a sentence that describes any part of them. The method is {paper.method}
("{paper.title}"){variant}; the model has {num_weights:,} weights.

```python
import midreel

method = midreel.load_method("PATH/TO/THIS/FOLDER")
```"""


def _features(settings: Mapping[str, Any], fingerprint: Mapping[str, Any] | None) -> str:
    if fingerprint is None:
        widths = {name: settings[name] for name in ("video_width", "text_width", "width") if name in settings}
        known = ", ".join(f"`{name}` {width}" for name, width in widths.items())
        return f"## Features\n\nWhich features it was made for is not recorded beyond its settings: {known}."
    rows = {label: fingerprint[name] for name, label in OF_FEATURES.items() if fingerprint.get(name) is not None}
    if source := source_for_others(str(fingerprint.get("source", ""))):
        rows["loaded from"] = source
    return "## Features\n\nIt understands features of this kind and no others:\n\n" + _table(rows)


def _training(recipe: Mapping[str, Any] | None, data: Mapping[str, Any]) -> str:
    if recipe is None:
        return "## Training\n\nHow it came about is not recorded."
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
        return "## Figures\n\nNone were measured when this was written: `midreel evaluate` does it."
    where = {
        "val": "On `val` (or `test`, without it), where the epoch was also chosen: other videos will give lower ones.",
        "holdout": "On training videos that were held out to choose the epoch: other videos will give lower figures.",
    }.get(recipe.get("selection", ""), "On the videos on which the epoch was chosen.")
    figures = {name: f"{value:.2f}" for name, value in record["metrics"].items()}
    return f"## Figures\n\n{where}\nIn percent, after epoch {record['epoch']}, counted from 0.\n\n" + _table(figures)


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
