"""Commands that exchange models and annotations with the Hugging Face hub."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from midreel.cli.commands import AsJson, Commands, print_result
from midreel.cli.research import data
from midreel.errors import BadSetting

app = Commands()


@app.command(examples=("midreel push runs/mine me/my-model --private",))
def push(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a model folder.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model on the hub.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also upload the encoders as ONNX graphs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    Uploads what midreel export-model writes: weights, settings, metrics and
    the model card, without paths of this computer. Log in first: hf auth login.
    """
    from midreel.experiments.model_export import export_model
    from midreel.io.hub import push_folder

    with tempfile.TemporaryDirectory(prefix="midreel-push-") as folder:
        exported = export_model(model, Path(folder) / "model", onnx=onnx)
        files = sorted(path.name for path in exported.folder.iterdir())
        address = push_folder(exported.folder, name, private=private)
    print_result(as_json, {"address": address, "files": files}, f"{address}: {', '.join(files)}")


@data.command(
    "import-hf",
    examples=(
        "midreel data import-hf saved-dataset clips",
        "midreel data import-hf owner/name clips --column query=caption",
    ),
)
def import_hf(
    source: Annotated[str, typer.Argument(help="A folder of save_to_disk, or a dataset on the hub.")],
    folder: Annotated[Path, typer.Argument(help="Write annotations.jsonl into this folder of videos.")],
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="FIELD=NAME", help="Column of video, query, start, end, moments or id."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import annotations from a Hugging Face dataset.

    Common names of columns are recognised. Videos are not downloaded:
    put them into the folder, under the names in the dataset.
    """
    from midreel.datasets.hugging_face import import_annotations

    pairs = [each.partition("=") for each in columns or []]
    for field, equals, column in pairs:
        if not (field and equals and column):
            raise BadSetting(f"the column is {field + equals + column!r}, expected FIELD=NAME, such as query=caption.")
    splits = import_annotations(source, folder, {field: column for field, _, column in pairs})
    made = {name: {"videos": len(each.video_ids), "queries": len(each.queries)} for name, each in splits.items()}
    lines = [f"{name}: {each['videos']:,} videos, {each['queries']:,} queries" for name, each in made.items()]
    print_result(as_json, {"folder": str(folder), "splits": made}, "\n".join([*lines, f"written to {folder}"]))
