"""The command diagnose: what a library or a run looks like from inside."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midreel.cli.commands import AsJson, Commands, Device, print_result
from midreel.errors import BadSetting
from midreel.library.place import checked

if TYPE_CHECKING:
    from midreel.experiments.diagnose import Subject

app = Commands()


@app.command(
    examples=(
        "midreel diagnose midreel-library --html diagnosis.html",
        "midreel diagnose midreel-library --queries sentences.txt",
        "midreel diagnose runs/mine --dataset clips",
    )
)
def diagnose(
    path: Annotated[
        str, typer.Argument(metavar="LIBRARY|RUN", help="A library, or a run with --dataset.", callback=checked)
    ],
    dataset: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Measure the run on this dataset.", show_default=False)
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split of the dataset.", show_default="test, or val")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Search these lines instead of everyday sentences.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Compare with the training of this model.", show_default="the library's"),
    ] = None,
    duplicates: Annotated[
        float, typer.Option(metavar="S", min=0, max=1, help="Least similarity of near-duplicates.")
    ] = 0.95,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Measure at most N videos, drawn at random.")] = 5000,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with plots.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the page.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure collapse, near-duplicates, hubs and drift.

    Needs no annotations. A library is measured by its index and features.
    A run is measured on the videos and queries of a dataset.
    """
    from midreel.cli.results import read_queries
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import diagnose as diagnosis
    from midreel.experiments import diagnosis_page, runs
    from midreel.library.export import expect_free
    from midreel.library.storage import is_library

    if html is not None:
        expect_free(html, overwrite=overwrite)  # fail before the work
    opened: AbstractContextManager[Subject]
    if is_library(path):
        if dataset is not None:
            raise BadSetting(f"{path} is a library, which needs no --dataset. Leave it out, or name a run.")
        sentences = [] if queries is None else read_queries(queries)
        opened = diagnosis.library_subject(path, sentences, model=model, device=device)
    else:
        if dataset is None:
            raise BadSetting(f"{path} is not a library, expected one. For a run, add --dataset FOLDER.")
        if queries is not None:
            raise BadSetting("--queries is given, expected only with a library. A run uses the queries of its dataset.")
        data = Dataset.open(dataset)
        opened = diagnosis.run_subject(Path(path), data, split or runs.reporting_split(data), device=device)
    with opened as subject:
        found = diagnosis.diagnose(subject, most=most, threshold=duplicates)
    text = found.text_report
    if html is not None:
        diagnosis_page.write(found, html)
        text += f"\npage: {html}"
    print_result(as_json, found.to_dict() | {"page": None if html is None else str(html)}, text)
