"""Table 3c: TCPL with the text space of other backbones."""

from dataclasses import replace

from midreel.errors import MissingFeatures
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.rows import result_of, run_rows
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.features.stores.store import FeatureStore

# SumR on QVHighlights by the source model, which the name of a store or of its backbone contains.
PRINTED = {"openclip-l": 236.4, "openclip-b": 235.4, "clip-l": 235.6, "clip-b": 234.6}


def make(experiment: Experiment, context: Context) -> Result:
    """Run the table: the default row, and one for each store of another backbone.

    Raises:
        MissingFeatures: There is no other store.
    """
    if not context.sources:
        raise MissingFeatures(
            "Table 3c compares text encoders, and --source is missing. Extract the dataset with another backbone: "
            "midreel extract DATASET --backbone NAME --out OTHER.h5, then add --source OTHER.h5"
        )
    places = {path.stem: replace(context.place, teacher=path) for path in context.sources}
    given = experiment.rows_for(context.dataset.name)
    added = [
        Row(key=path.stem, label=f"{path.stem} ({_backbone(path)})", paper=_printed(path.stem, _backbone(path)))
        for path in context.sources
    ]
    rows = [row for row in (*given, *added) if context.rows is None or row.key in context.rows]
    paired = replace(experiment, pairs=tuple((row.key, given[0].key) for row in added))
    return result_of(paired, context, rows, run_rows(context, rows, places))


def _backbone(path: object) -> str:
    fingerprint = FeatureStore.open(str(path)).fingerprint
    return fingerprint.source or fingerprint.backbone


def _printed(*names: str) -> dict[str, float]:
    """Return what the paper printed for a source model, if the name is one of them."""
    plain = " ".join(names).lower().replace("_", "-").replace("vit-", "")
    return next(({"SumR": value} for model, value in PRINTED.items() if model in plain), {})
