"""Commands for experiments: the tables and figures of the paper, and comparisons of runs."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midreel.cli.commands import PARTIAL, AsJson, Commands, Device, print_result
from midreel.cli.research import Changes, DatasetFolder, Features, RecipeName, parse_settings
from midreel.errors import BadSetting

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from midreel.experiments.scheduler import Progress

app = Commands()

Datasets = Annotated[
    list[Path],
    typer.Option("--dataset", metavar="FOLDER", help="A dataset with features. Repeatable for transfer."),
]


@app.command(
    examples=(
        "midreel reproduce --list",
        "midreel reproduce 1 --dataset clips --seeds 5 --jobs 2",
        "midreel reproduce --card runs/paper/table-1/card.json",
    )
)
def reproduce(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A name of --list, such as 1, 3a, A2 or fig1.")] = "",
    folders: Datasets = [],  # noqa: B006  Typer reads it, nobody changes it
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write runs and results here.", show_default="runs/paper"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Train each row with N seeds.")] = 5,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Train N runs at the same time.")] = 1,
    rows: Annotated[
        str, typer.Option(metavar="ROWS", help="Run only these rows, such as base,msc.", show_default="all rows")
    ] = "",
    sources: Annotated[
        list[Path],
        typer.Option("--source", metavar="STORE", help="Text features of another backbone, for 3c. Repeatable."),
    ] = [],  # noqa: B006
    card: Annotated[
        Path | None,
        typer.Option(
            "--card", metavar="FILE", help="Run the experiment of a card again, and compare.", show_default=""
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    recipe: RecipeName = None,
    changes: Changes = [],  # noqa: B006
    features: Features = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Compute each run with N threads.")] = 1,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make a table or figure of the paper.

    Trains the rows with several seeds, and prints our results beside the
    paper's, with intervals and tests. Runs that tables share are trained once.
    Finished runs are kept: to continue after an interruption, run it again.
    The exit code is 3 if a run failed, or a card gives another result.
    """
    from midreel.cli import console
    from midreel.experiments import reproduce as experiments
    from midreel.experiments.reproduce import card as cards
    from midreel.experiments.reproduce import running
    from midreel.experiments.reproduce.specs import Context
    from midreel.experiments.trainings import Place

    if show_list:
        print_result(as_json, experiments.listed(), experiments.list_text())
        return
    expected: str | None = None
    if card is not None:
        given = cards.Card.read(card)
        experiment, expected = experiments.find(given.experiment), given.result
        context = replace(given.context, out=out or given.context.out, jobs=jobs)
        given.expect_same_dataset(context)
    else:
        if not name or not folders:
            raise BadSetting(
                f"{'--dataset' if name else 'TABLE'} is missing. Try: midreel reproduce 1 --dataset FOLDER, or --list."
            )
        experiment = experiments.find(name)
        places = [Place(folder=folder, name=recipe, features=features) for folder in folders]
        context = Context(
            place=places[0],
            others=tuple(places[1:]),
            out=out or Path("runs/paper"),
            seeds=seeds,
            rows=rows.split(",") if rows else None,
            changes=parse_settings(changes),
            sources=tuple(sources),
            jobs=jobs,
            device=device,
            threads=threads,
        )
    with console.bars() as progress:
        result = running.run(experiment, replace(context, notify=RunsBar(progress)))
    folder = context.out / experiment.folder
    lines = [result.text(), f"written to {folder}: {running.PAGE}, table.md, .tex, .csv, .json, card.json"]
    same = None if expected is None else cards.digest(result) == expected
    if same is not None:
        lines.append(f"the result has {'the same bits as' if same else 'other bits than'} that of {card}")
    print_result(
        as_json, result.to_dict() | {"folder": str(folder), "same_as_card": same}, "\n\n".join(filter(None, lines))
    )
    if result.failures or same is False:
        raise typer.Exit(PARTIAL)


@app.command(
    examples=(
        "midreel compare runs/mine zero-shot --dataset clips",
        "midreel compare runs/a1,runs/a2 runs/b1,runs/b2 --dataset clips",
    )
)
def compare(
    ours: Annotated[str, typer.Argument(metavar="A", help="A run, a model or zero-shot. Seeds: A1,A2,A3.")],
    theirs: Annotated[str, typer.Argument(metavar="B", help="The run to compare with. Seeds: B1,B2,B3.")],
    folder: DatasetFolder,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="Compare on this split.", show_default="the paper's; else test or val")
    ] = "",
    recipe: RecipeName = None,
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare two models, overall and by group of queries.

    Prints the SumR of both, the difference with its 95 % interval, and
    p-values. Groups: length of the moment as a share of the video, length of
    the video, and still or moving scenes where the dataset tells.
    """
    from midreel import recipes
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import comparison, runs

    dataset = Dataset.open(folder, recipe, features=features)
    like = recipes.build("msc", recipe or recipes.name_for("msc", dataset.name))
    result = comparison.compare(
        ours.split(","),
        theirs.split(","),
        dataset,
        split or runs.reporting_split(dataset),
        like=like,
        device=device,
    )
    print_result(as_json, result.to_dict(), result.text())


class RunsBar:
    """A callback for the scheduler that shows finished runs, running ones, and the time left.

    Args:
        bars: The display that shows the bar.
    """

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._task = bars.add_task("runs", total=None, note="")

    def __call__(self, progress: "Progress") -> None:
        """Show the state of all runs."""
        left = progress.seconds_left
        notes = [] if left is None else [f"{duration(left)} left"]
        notes += [f"{len(progress.failed)} failed"] if progress.failed else []
        notes += [f"{name} {share:.0%}" for name, share in progress.running.items()]
        ended = len(progress.done) + len(progress.failed)
        self._bars.update(self._task, total=progress.num_tasks, completed=ended, note="  ".join(notes))


def duration(seconds: float) -> str:
    """Return a time for people: 40 s, 12 min, 3 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
