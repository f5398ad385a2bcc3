"""Commands of research: data, features, training, evaluation, whole experiments."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from midreel.cli.commands import PARTIAL, AsJson, Commands, Device, print_result
from midreel.errors import BadSetting, UnknownName

app = Commands()
experiment = Commands(help="Whole experiments: many runs, one table.", no_args_is_help=True)
app.add_typer(experiment, name="experiment")
data = Commands(help="Annotations: begin your own, or see what lies in a folder.", no_args_is_help=True)
app.add_typer(data, name="data")

DatasetFolder = Annotated[
    Path, typer.Option("--dataset", metavar="FOLDER", help="Annotations and features, or a benchmark's PRVR release.")
]
Features = Annotated[str | None, typer.Option("--features", help="Which of a release's features, such as clip_l14.")]
MethodName = Annotated[str, typer.Option("--method", metavar="NAME", help="What to train; midreel methods lists all.")]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="The settings of another dataset. [default: the dataset's own]"),
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="SETTING=VALUE", help="Change a setting of the recipe, such as width=64. Repeatable."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Another seed, another dataset.")]


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the dataset, the runs and the report go.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of videos, train on it, and search it: the whole of midreel in minutes.

    Interrupted, it goes on where it was when it is run again.
    """
    from midreel.cli import console
    from midreel.experiments import demo as demonstration

    with console.bars() as progress:
        result = demonstration.run(folder, seed=seed, audience=console.Stage(progress))
    print_result(as_json, result.to_dict(), result.text)


@app.command()
def playhouse(
    folder: Annotated[Path, typer.Argument(help="A new folder, or a playhouse to complete.")],
    train: Annotated[int, typer.Option(min=0, help="Videos to train on.")] = 100,
    val: Annotated[int, typer.Option(min=0, help="Videos to choose the epoch on.")] = 20,
    test: Annotated[int, typer.Option(min=0, help="Videos to report on.")] = 20,
    seed: Seed = 0,
    files: Annotated[
        str, typer.Option(help="Splits that become mp4 files; the others are drawn when they are needed.")
    ] = "train,val,test",
    as_json: AsJson = False,
) -> None:
    """Generate a dataset of small untrimmed videos with sentences about their parts."""
    from midreel.cli import console
    from midreel.datasets import playhouse as generator

    counts = {"train": train, "val": val, "test": test}
    with_files = [name for name in files.split(",") if name]
    with console.bars() as progress:
        splits = generator.write_dataset(
            folder,
            seed=seed,
            num_train=train,
            num_val=val,
            num_test=test,
            files=with_files,
            progress=console.Stage(progress).files(sum(counts.get(name, 0) for name in with_files)),
        )
    some = [video_id for split in splits.values() for video_id in split.video_ids][:4]
    generator.contact_sheet([generator.find_video(seed, video_id) for video_id in some], folder / "contact-sheet.png")
    made = {name: {"videos": len(s.video_ids), "queries": len(s.queries)} for name, s in splits.items()}
    lines = [f"{name}: {_counted(**each)}" for name, each in made.items()]
    print_result(as_json, {"folder": str(folder), "splits": made}, "\n".join([*lines, f"written to {folder}"]))


@data.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A dataset, or the folder above several.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Only this dataset: own, activitynet, charades, qvhighlights, tvr.")
    ] = None,
    features: Features = None,
    as_json: AsJson = False,
) -> None:
    """Count the videos and queries of a benchmark, or of your own folder, read its features, and say what is off.

    Counts stand beside the known variants of each benchmark. The exit code is 3 if something is off.
    """
    from midreel.datasets import find_annotations
    from midreel.datasets.verify import verify_dataset

    verifications = [verify_dataset(place.open(), features) for place in find_annotations(folder, name)]
    print_result(
        as_json,
        {"datasets": [each.to_dict() for each in verifications]},
        "\n\n".join(each.to_text() for each in verifications),
    )
    if not all(each.ok for each in verifications):
        raise typer.Exit(PARTIAL)


@data.command()
def new(
    folder: Annotated[Path, typer.Argument(help="A folder of videos.")],
    form: Annotated[str, typer.Option("--format", help="Of the file: csv for a spreadsheet, or jsonl.")] = "csv",
    as_json: AsJson = False,
) -> None:
    """Begin the annotations of a folder: a line for each video in it, where you write what happens, and when.

    Copy a video's line for each further sentence. A file that exists is left as it is.
    """
    from midreel.datasets import own

    path = own.new_template(folder, form)
    num_videos = len(own.video_files(folder))
    waiting = "1 video waits" if num_videos == 1 else f"{num_videos:,} videos wait"
    text = f"{path}: {waiting} for a sentence\n{own.ABOUT_SPLITS}"
    print_result(as_json, {"file": str(path), "videos": num_videos}, text)


@app.command()
def extract(
    path: Annotated[
        Path,
        typer.Argument(
            help="A dataset: annotations.jsonl or annotations.csv, and the videos it names. Or a folder of videos, a "
            "text file that lists videos, a video.",
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(
            help="tiny-clip; local-dir:PATH or a hub id such as openai/clip-vit-large-patch14, a CLIP or a SigLIP; "
            "slowfast:FILE."
        ),
    ] = "tiny-clip",
    rate: Annotated[float, typer.Option(help="Frames per second.")] = 2.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The store; unless given, features.h5 in the folder, or LIST.h5 beside the list."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many videos to decode at a time.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what an earlier run could not read.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Encode the frames of videos, and the words of a dataset's queries; goes on where it was interrupted.

    A video that cannot be read is named and left out, and the exit code is 3; mend it and run again.
    """
    from midreel.cli import console
    from midreel.datasets import dataset
    from midreel.datasets.sources import Source
    from midreel.features import load_backbone

    source, encoder = Source.find(path), load_backbone(backbone, device)
    with console.bars() as progress:
        bar = console.ExtractionBar(progress, "videos", len(source.video_ids))
        videos, queries = dataset.extract(
            source, encoder, rate=rate, out=out, workers=workers, retry=retry, progress=bar
        )
    kinds = {"videos": videos, "queries": queries}
    lines = [
        f"{kind}: {len(report.done):,} encoded, {len(report.skipped):,} were there, {len(report.failed):,} left out"
        for kind, report in kinds.items()
        if report is videos or source.queries
    ]
    lines += [*source.remarks, *(f"damaged {name}: {damage}" for name, damage in videos.damaged.items())]
    failed = videos.failed | queries.failed
    lines += [f"left out {name}: {reason}" for name, reason in failed.items()]
    if videos.not_retried:
        lines.append(
            f"{len(videos.not_retried):,} of them could not be read by an earlier run and have not changed since; "
            f"--retry tries them again"
        )
    lines += [
        f"remark: the store still holds {name} as it was before its file changed, and it is used like that; mend the "
        f"file, or take the video out of the annotations"
        for name in videos.outdated
    ]
    counts = {kind: {"done": len(r.done), "skipped": len(r.skipped), "failed": r.failed} for kind, r in kinds.items()}
    more = {
        "not_retried": videos.not_retried,
        "outdated": videos.outdated,
        "damaged": videos.damaged,
        "remarks": list(source.remarks),
    }
    print_result(as_json, counts | more, "\n".join(lines))
    if failed:
        raise typer.Exit(PARTIAL)


@app.command()
def join(
    stores: Annotated[list[Path], typer.Argument(metavar="STORE STORE...", help="The first one's clock counts.")],
    out: Annotated[Path, typer.Option("--out", help="A new store, or one to complete.")],
    texts: Annotated[
        Path | None, typer.Option(help="The store whose texts to take, where several have some.", metavar="STORE")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Seconds to the nearest frame; half a frame's interval unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join feature stores by time: the frames of all side by side; goes on where it was interrupted.

    A video that a store lacks, or about which the clocks disagree, is named and left out, and the exit code is 3.
    """
    from midreel.cli import console
    from midreel.features.stores import join as joining

    with console.bars() as progress:
        bar = console.ExtractionBar(progress, "joined", joining.num_items(stores, texts))
        report = joining.join_stores(stores, out, texts=texts, tolerance=tolerance, progress=bar)
    print_result(as_json, report.to_dict(), report.text)
    if report.failed:
        raise typer.Exit(PARTIAL)


@app.command()
def train(
    folder: DatasetFolder,
    out: Annotated[Path, typer.Option("--out", help="The run's folder.")],
    method: MethodName = "msc",
    recipe: RecipeName = None,
    changes: Changes = [],  # noqa: B006  Typer reads it, nobody changes it
    seed: Annotated[int | None, typer.Option(help="Another seed than the recipe's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, by its own recipe.")] = False,
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a method on a dataset; the best model is in the run's folder best/.

    The files of a run, and --json, count epochs from 0.
    """
    settings = _settings(changes) | ({} if seed is None else {"seed": seed})
    from midreel import recipes
    from midreel.cli import console
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import runs
    from midreel.recipes.recipe import Recipe
    from midreel.training.fit import LOG, RECIPE, is_finished, read_lines

    if resume and not settings and (out / RECIPE).is_file():
        chosen, asked = Recipe.from_json((out / RECIPE).read_text(encoding="utf-8")), f"the recipe of {out}"
        dataset = Dataset.open(folder, recipe, features=features)
    else:
        recipes.expect_settings(method, settings)  # before anything is read
        dataset = Dataset.open(folder, recipe, features=features)
        name = recipe or recipes.name_for(method, dataset.name)
        chosen, asked = recipes.build(method, name, settings), f"the recipe {name} of {method}"
    finished = resume and is_finished(out, chosen)
    with console.bars() as progress:
        bar = console.TrainingBar(progress, "train", chosen.epochs)
        try:
            best = runs.train(dataset, chosen, out, resume=resume, device=device, monitor=bar, asked=asked)
        except KeyboardInterrupt:
            print("midreel: the same command with --resume goes on with the run", file=sys.stderr)
            raise
    record = json.loads((best / "metrics.json").read_text(encoding="utf-8"))
    num_epochs = len(list(read_lines(out / LOG)))
    lines = ["the run had finished: nothing was left to do"] if finished else []
    figures = "  ".join(f"{name} {value:.1f}" for name, value in record["metrics"].items())
    remarks = runs.remarks_on_choosing(dataset, chosen)
    lines += [f"best epoch {record['epoch'] + 1} of {num_epochs}: {figures}", f"model: {best}"]
    lines += [f"remark: {remark}" for remark in remarks]
    result = {"model": str(best), "had_finished": finished, **record, "remarks": remarks}
    print_result(as_json, result, "\n".join(lines))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A run's folder, a model's folder, zero-shot, or zero-shot-clips.")],
    folder: DatasetFolder,
    split: Annotated[
        str, typer.Option(help="Whose queries and videos; test, or val where there is no test or the paper takes val.")
    ] = "",
    recipe: RecipeName = None,
    form: Annotated[str, typer.Option("--format", help="Of the table: text, markdown, csv, latex.")] = "text",
    trec: Annotated[
        Path | None, typer.Option(help="Also write a TREC run file, and beside it FILE.qrels.", metavar="FILE")
    ] = None,
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model: recalls, moments, and how far its spaces have collapsed. --json has every figure.

    On a benchmark, the paper's table follows (in text and Markdown), with the model as its last row.
    """
    from midreel import recipes
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import paper_results, runs
    from midreel.training.data import FeatureSet

    if form not in runs.FORMATS:
        raise UnknownName.among("format", form, runs.FORMATS)
    dataset = Dataset.open(folder, recipe, features=features)
    wanted = split or runs.reporting_split(dataset)
    method = runs.load(model, dataset, recipes.build("msc", recipe or recipes.name_for("msc", dataset.name)))
    searched = FeatureSet.of(method, dataset, wanted)
    examination = runs.examine(method, searched, device=device, keep_scores=trec is not None)
    figures, name = examination.figures(), dataset.name
    remarks = runs.remarks(examination.report)
    if not split:
        remarks = runs.remarks_on_reporting(dataset) + remarks
    counts = {"videos": len(searched), "queries": len(searched.queries)}
    head = "\n".join([f"{wanted}: {_counted(**counts)}", *(f"remark: {remark}" for remark in remarks)])
    text = runs.table({model: figures}, form)
    if form in ("text", "markdown"):
        printed = paper_results.beside(name, model, figures, form) if wanted != "train" else ""
        text = f"{head}\n\n{text}\n{printed}"
    elif not as_json:  # a program, or LaTeX, reads the table and nothing else
        print(head, file=sys.stderr)
    result = {"model": model, "split": wanted, **counts, "remarks": remarks, "figures": figures}
    print_result(as_json, result | {"paper": paper_results.PRINTED.get(name)}, text)
    if trec is not None:
        runs.write_trec(trec, examination, searched)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods, and the datasets that each has a recipe for."""
    from midreel import recipes
    from midreel.methods import METHODS

    found = {
        name: {"paper": method.paper.title, "recipes": sorted(recipes.RECIPES.get(name, ()))}
        for name, method in sorted(METHODS.items())
    }
    width = max(map(len, found))
    lines = [
        f"{name:{width}}  {METHODS[name].paper.method}; {', '.join(each['recipes']) or 'not trained'}"
        for name, each in found.items()
    ]
    print_result(as_json, found, "\n".join(lines))


@app.command()
def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A checkpoint of the authors' code, such as best.ckpt.")],
    out: Annotated[Path, typer.Option("--out", help="The model's folder, a new one.")],
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="SETTING=VALUE",
            help="A setting that the file does not tell, such as temperature=0.09. Repeatable.",
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Make a model folder of a released MSC or GMMFormer v2 checkpoint. Nothing in the file is run."""
    settings = _settings(changes)
    from midreel.methods import released

    imported = released.import_checkpoint(file, out, settings)
    print_result(as_json, imported.to_dict(), imported.text)


@app.command()
def export_model(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a model's folder.", metavar="RUN")],
    out: Annotated[Path, typer.Argument(help="The exported model's folder, a new one.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write both encoders as ONNX graphs, and compare them with torch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a folder for others of a trained model: weights, settings, model card, ONNX."""
    from midreel.experiments import model_export

    exported = model_export.export_model(run, out, onnx=onnx)
    print_result(as_json, exported.to_dict(), exported.text)


@experiment.command()
def ablation(
    folder: DatasetFolder,
    out: Annotated[Path, typer.Option("--out", help="Where the runs and the table go.")],
    recipe: RecipeName = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 3,
    rows: Annotated[str, typer.Option(help="Some rows only, such as base,tcpl.")] = "",
    changes: Changes = [],  # noqa: B006
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """The paper's ablation: each part added in turn, the controls, zero-shot; mean and spread over seeds.

    Interrupted, it goes on where it was when it is run again.
    """
    settings = _settings(changes)
    from midreel.cli import console
    from midreel.experiments import ablation as study

    with console.bars() as progress:
        result = study.run(
            folder,
            out,
            recipe=recipe,
            features=features,
            seeds=seeds,
            rows=rows.split(",") if rows else None,
            changes=settings,
            device=device,
            monitor_of=console.Stage(progress).training,
        )
    print_result(as_json, result.to_dict(), result.table("text"))


def _counted(videos: int, queries: int) -> str:
    return f"{videos:,} video{'s' * (videos != 1)}, {queries:,} {'query' if queries == 1 else 'queries'}"


def _settings(changes: list[str]) -> dict[str, Any]:
    """["width=64", "clips=uniform"] -> {"width": 64, "clips": "uniform"}"""
    pairs = [change.partition("=") for change in changes]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise BadSetting(f"--set {name}{equals}{value} sets nothing, expected SETTING=VALUE, such as width=64")
    return {name: _value(text) for name, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text  # a word, such as uniform
