"""Commands for research: datasets, features, training and evaluation."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midreel.cli.commands import PARTIAL, AsJson, ClusterAddress, Commands, Device, ShardName, Workers, print_result
from midreel.errors import BadSetting, UnknownName

if TYPE_CHECKING:
    from midreel.datasets.sources import Source
    from midreel.features.backbones.known import Known
    from midreel.features.extract import ExtractionReport

app = Commands()
data = Commands(help="Create or verify annotations, or merge features.", no_args_is_help=True)
app.add_typer(data, name="data")

DatasetFolder = Annotated[
    Path,
    typer.Option("--dataset", metavar="FOLDER", help="Annotations and features, or a benchmark's PRVR release."),
]
Features = Annotated[
    str | None,
    typer.Option("--features", metavar="NAME", help="Kind of features, such as clip-l14, or files of a release."),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="NAME", help="Use the settings for another dataset.", show_default="the dataset's"
    ),
]
Changes = Annotated[
    list[str],
    typer.Option("--set", metavar="SETTING=VALUE", help="Change a setting of the recipe: width=64. Repeatable."),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the generated dataset.")]


@app.command(examples=("midreel demo", "midreel search runs/demo/library a red ball"))
def demo(
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Write the dataset, the runs and the report here.")
    ] = Path("runs/demo"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Generate videos, train a model on them, and search them.

    Takes about 10 minutes on two cores.
    To resume an interrupted demo, run the command again.
    """
    from midreel.cli import console, training_console
    from midreel.experiments import demo as demonstration

    with console.bars() as progress:
        result = demonstration.run(folder, seed=seed, audience=training_console.Stage(progress))
    print_result(as_json, result.to_dict(), result.text)


@app.command(
    examples=(
        "midreel playhouse toys --train 20 --val 5 --test 5",
        "midreel playhouse films --kind large --files test",
        "midreel extract toys",
    )
)
def playhouse(
    folder: Annotated[Path, typer.Argument(help="A new folder, or a generated dataset to extend.")],
    train: Annotated[int, typer.Option(metavar="N", min=0, help="Number of videos for training.")] = 100,
    val: Annotated[int, typer.Option(metavar="N", min=0, help="Number of videos for choosing the epoch.")] = 20,
    test: Annotated[int, typer.Option(metavar="N", min=0, help="Number of videos for testing.")] = 20,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="small, repeated (an event happens again) or large.")
    ] = "small",
    seed: Seed = 0,
    files: Annotated[
        str, typer.Option(metavar="SPLITS", help="Write mp4 files for these splits. Others are generated on demand.")
    ] = "train,val,test",
    as_json: AsJson = False,
) -> None:
    """Generate a dataset of small, annotated videos."""
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
            kind=kind,
            progress=console.files_bar(progress, sum(counts.get(name, 0) for name in with_files)),
        )
    some = [video_id for split in splits.values() for video_id in split.video_ids][:4]
    generator.contact_sheet([generator.find_video(seed, video_id) for video_id in some], folder / "contact-sheet.png")
    made = {name: {"videos": len(s.video_ids), "queries": len(s.queries)} for name, s in splits.items()}
    lines = [f"{name}: {_counts(**each)}" for name, each in made.items()]
    print_result(as_json, {"folder": str(folder), "splits": made}, "\n".join([*lines, f"written to {folder}"]))


@data.command(examples=("midreel data verify clips",))
def verify(
    folder: Annotated[Path, typer.Argument(help="A dataset, or a folder that contains datasets.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Verify only this one: own, activitynet, charades, qvhighlights or tvr.",
            show_default="every dataset in FOLDER",
        ),
    ] = None,
    features: Features = None,
    as_json: AsJson = False,
) -> None:
    """Check the annotations and the features of a dataset.

    Counts videos and queries, and compares them with the published counts.
    The exit code is 3 if there are problems.
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


@data.command(examples=("midreel data properties clips", "midreel data properties clips qvhighlights --split val"))
def properties(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Datasets, with or without features.")],
    split: Annotated[str, typer.Option(metavar="NAME", help="The split to measure.")] = "val",
    as_json: AsJson = False,
) -> None:
    """Compare datasets: how long, how many, how similar are their videos and queries.

    A cell with three numbers has the 10th, 50th and 90th percentile.
    """
    from dataclasses import asdict

    from midreel.datasets import open_annotations
    from midreel.datasets.dataset import Dataset
    from midreel.errors import MissingFeatures
    from midreel.evaluation import properties as measures

    def measured(folder: Path) -> measures.Properties:
        try:
            return measures.properties(Dataset.open(folder), split)
        except MissingFeatures:
            return measures.properties(open_annotations(folder), split)

    found = {str(folder): measured(folder) for folder in folders}
    values = {
        folder: {name: value if isinstance(value, float) else asdict(value) for name, value in each.items()}
        for folder, each in found.items()
    }
    print_result(as_json, values, measures.to_text({Path(folder).name: each for folder, each in found.items()}))


@data.command(examples=("midreel data new clips", "midreel data new clips --format jsonl"))
def new(
    folder: Annotated[Path, typer.Argument(help="A folder of videos.")],
    file_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Format of the file: csv or jsonl.")
    ] = "csv",
    as_json: AsJson = False,
) -> None:
    """Create an annotation file for a folder of videos.

    The file has one line per video. Fill in what happens, and when.
    To describe another part of a video, copy its line.
    Existing annotations are not overwritten.
    """
    from midreel.datasets import own

    path = own.new_template(folder, file_format)
    num_videos = len(own.video_files(folder))
    text = f"{path}: {_videos(num_videos)} to describe\n{own.ABOUT_SPLITS}"
    print_result(as_json, {"file": str(path), "videos": num_videos}, text)


@app.command(
    examples=(
        "midreel extract clips --backbone openai/clip-vit-large-patch14",
        "midreel extract clips --retry",
    )
)
def extract(
    path: Annotated[
        Path, typer.Argument(help="A dataset, a folder of videos, a text file that lists videos, or a video.")
    ],
    backbone: Annotated[
        str, typer.Option(metavar="NAME", help="A hub id, local-dir:FOLDER, slowfast:FILE, offline or tiny-clip.")
    ] = "tiny-clip",
    rate: Annotated[float, typer.Option(metavar="N", help="Encode N frames per second.")] = 2.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the feature store to FILE.",
            show_default="FOLDER/features.h5, or LIST.h5",
        ),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry unreadable files.")] = False,
    shard: ShardName = None,
    cluster: ClusterAddress = None,
    workers: Workers = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compute the features of videos and queries.

    The backbone is a CLIP or SigLIP model, or SlowFast for motion features.
    Unreadable videos are listed and skipped, and the exit code is 3.
    To continue after an interruption, run the command again.
    With --shard, FILE has a part. midreel data merge joins the parts.
    """
    from midreel.cli import console
    from midreel.cli.nodes import cluster_actors
    from midreel.datasets import dataset
    from midreel.datasets.sources import Source
    from midreel.features import load_backbone
    from midreel.features.shards import Shard

    part = None if shard is None else Shard.parse(shard)
    source = Source.find(path) if part is None else Source.find(path).shard(part)
    encoder = load_backbone(backbone, "cpu" if cluster else device)
    if part is not None:
        part.record(out or source.store, finished=False)
    with cluster_actors(cluster, backbone, encoder, rate=rate, device=device) as nodes, console.bars() as progress:
        bar = console.ExtractionBar(progress, "videos", len(source.video_ids))
        videos, queries = dataset.extract(
            source,
            encoder,
            rate=rate,
            out=out,
            workers=nodes.num_threads if nodes else workers,
            retry=retry,
            progress=bar,
            encode=nodes.encode if nodes else None,
        )
    store = out or source.store
    if part is not None:
        part.record(store, finished=True)
    result = {
        "store": str(store),
        "videos": _extraction_counts(videos),
        "queries": _extraction_counts(queries),
        "not_retried": videos.not_retried,
        "outdated": videos.outdated,
        "damaged": videos.damaged,
        "remarks": list(source.remarks),
    }
    print_result(as_json, result, f"{_extraction_text(source, videos, queries)}\nfeatures: {store}")
    if videos.failed or queries.failed:
        raise typer.Exit(PARTIAL)


def _extraction_counts(report: "ExtractionReport") -> dict[str, Any]:
    return {"done": len(report.done), "skipped": len(report.skipped), "failed": report.failed}


def _extraction_text(source: "Source", videos: "ExtractionReport", queries: "ExtractionReport") -> str:
    lines = [
        f"{kind}: {len(report.done):,} encoded, {len(report.skipped):,} unchanged, {len(report.failed):,} failed"
        for kind, report in {"videos": videos, "queries": queries}.items()
        if report is videos or source.queries
    ]
    lines += [*source.remarks, *(f"partly readable {name}: {damage}" for name, damage in videos.damaged.items())]
    lines += [f"failed {name}: {reason}" for name, reason in (videos.failed | queries.failed).items()]
    if videos.not_retried:
        lines.append(
            f"{len(videos.not_retried):,} of these failed before and are unchanged, so they were not decoded again. "
            f"Retry them with --retry."
        )
    lines += [
        f"note: {name} changed and cannot be read, so its old features are used. "
        f"Fix the file, or remove the video from the annotations."
        for name in videos.outdated
    ]
    return "\n".join(lines)


@app.command(
    examples=(
        "midreel join clip.h5 slowfast.h5 --out clips/features.h5",
        "midreel join i3d.h5 clip.h5 --sentences clip.h5 --out clips/features.h5",
    )
)
def join(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE", help="Two or more stores. Timestamps come from the first.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new store, or one to complete.")],
    texts: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Take texts from STORE, if several stores have texts.")
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(
            metavar="STORE",
            help="Take sentence vectors from STORE, for a teacher.",
            show_default="the store of the texts",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Maximum time difference between joined frames.",
            show_default="half a frame interval",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join feature stores, frame by frame.

    A joined frame has the features of all stores at its time.
    A video that is missing in a store, or whose timestamps disagree,
    is listed and skipped, and the exit code is 3.
    To continue after an interruption, run the command again.
    """
    from midreel.cli import console
    from midreel.features.stores import join as joining

    with console.bars() as progress:
        bar = console.ExtractionBar(progress, "joined", joining.num_items(stores, texts, sentences))
        report = joining.join_stores(stores, out, texts=texts, sentences=sentences, tolerance=tolerance, progress=bar)
    print_result(as_json, report.to_dict(), report.text)
    if report.failed:
        raise typer.Exit(PARTIAL)


@app.command(
    examples=(
        "midreel train --dataset clips --out runs/mine",
        "midreel train --dataset clips --out runs/mine --resume",
        "midreel train --dataset clips --out runs/small --set width=64",
    )
)
def train(
    folder: DatasetFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Write the run here.")],
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="Train this method (see midreel methods).")
    ] = "msc",
    recipe: RecipeName = None,
    changes: Changes = [],  # noqa: B006  Typer reads it, nobody changes it
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed of the run.", show_default="the recipe's")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out, with its own settings.")] = False,
    keep_trained: Annotated[
        bool, typer.Option("--keep-trained", help="Keep the trained model even if zero-shot is better.")
    ] = False,
    report_to: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show curves in tensorboard, wandb, trackio or none.",
            show_default="tensorboard if installed",
        ),
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read features when needed, or keep them in memory.",
            show_default="by size",
        ),
    ] = None,
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a method on a dataset.

    Writes the best model to the folder best of the run. If zero-shot is better
    on the videos that the epoch is chosen on, best is the zero-shot model.
    Widths follow the features of the dataset, if midreel knows their kind:
    i3d-roberta, clip-b32, clip-l14, slowfast-clip-b or tiny-clip.
    The files of a run, and --json, count epochs from 0.
    torchrun --nproc-per-node N -m midreel train … trains on N processes.
    """
    settings = parse_settings(changes) | ({} if seed is None else {"seed": seed})
    from midreel import recipes
    from midreel.cli import console, training_console
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import fallback, runs
    from midreel.ops import processes
    from midreel.recipes.recipe import Recipe
    from midreel.training.fit import LOG, RECIPE, is_finished, read_lines

    if resume and not settings and (out / RECIPE).is_file():
        chosen, asked = Recipe.from_json((out / RECIPE).read_text(encoding="utf-8")), f"the recipe of {out}"
        dataset = Dataset.open(folder, recipe, features=features)
    else:
        recipes.expect_settings(method, settings)  # fail before the dataset is read
        dataset = Dataset.open(folder, recipe, features=features)
        name = recipe or recipes.name_for(method, dataset.name)
        chosen, asked = runs.recipe_for(dataset, method, name, settings, features), f"the recipe {name} of {method}"
    finished = resume and is_finished(out, chosen)
    with processes.joined(device) as together, console.bars() as progress:
        writes = together is None or together.is_first
        if together is not None:
            chosen, device = together.of_first(chosen), together.device
        try:
            best = runs.train(
                dataset,
                chosen,
                out,
                resume=resume,
                device=device,
                monitor=training_console.TrainingBar(progress, "train", chosen.epochs) if writes else None,
                asked=asked,
                report_to=report_to,
                stream=stream,
                processes=together,
            )
            if not writes:
                return
            if keep_trained:
                fallback.restore(out)
            compared = None if keep_trained else fallback.compare(dataset, chosen, out, device=device)
        except KeyboardInterrupt:
            print("midreel: to resume the run, add --resume to the command", file=sys.stderr)
            raise
    trained = out / compared.kept if compared is not None else best
    record = json.loads((trained / "metrics.json").read_text(encoding="utf-8"))
    num_epochs = len(list(read_lines(out / LOG)))
    lines = ["the run is already finished"] if finished else []
    if chosen.features:
        lines.append(f"features: {chosen.features}")
    figures = "  ".join(f"{name} {value:.1f}" for name, value in record["metrics"].items())
    remarks = runs.remarks_on_choosing(dataset, chosen)
    lines.append(f"best epoch {record['epoch'] + 1} of {num_epochs}: {figures}")
    if compared is not None:
        lines.append(compared.text(out))
    elif not keep_trained:
        remarks.append("the features have no joint space of frames and sentences, so there is no zero-shot to compare")
    lines += [f"model: {best}", *(f"note: {remark}" for remark in remarks)]
    result = {"model": str(best), "had_finished": finished, "features": chosen.features or None, **record}
    result["zero_shot"] = None if compared is None else asdict(compared)
    result["remarks"] = remarks
    print_result(as_json, result, "\n".join(lines))


@app.command(
    examples=(
        "midreel evaluate runs/mine --dataset clips",
        "midreel evaluate zero-shot --dataset tvr --format markdown",
    )
)
def evaluate(
    model: Annotated[str, typer.Argument(help="A run, model folder, hub id, zero-shot, zero-shot-clips or tf-prvr.")],
    folder: DatasetFolder,
    split: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Evaluate on this split.",
            show_default="the paper's; else test or val",
        ),
    ] = "",
    recipe: RecipeName = None,
    table_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Print the table as text, markdown, csv or latex.")
    ] = "text",
    trec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a TREC run to FILE, and FILE.qrels.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also count all videos that FILE (JSONL) labels as right.")
    ] = None,
    by_group: Annotated[bool, typer.Option("--groups", help="Also print the recalls of groups of queries.")] = False,
    features: Features = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how well a model finds videos and moments.

    Prints recalls, moment localisation, and the collapse of the embeddings.
    --groups: by length of the moment as a share of the video, and of the video.
    On a benchmark, the paper's table follows, with the model as its last row.
    --json prints all metrics.
    """
    from midreel import recipes
    from midreel.datasets.dataset import Dataset
    from midreel.datasets.dense_labels import read_labels
    from midreel.evaluation import tables
    from midreel.experiments import comparison, paper_results, runs
    from midreel.training.data import FeatureSet

    if table_format not in runs.FORMATS:
        raise UnknownName.among("format", table_format, runs.FORMATS)
    dataset = Dataset.open(folder, recipe, features=features)
    wanted = split or runs.reporting_split(dataset)
    method = runs.load(model, dataset, recipes.build("msc", recipe or recipes.name_for("msc", dataset.name)))
    searched = FeatureSet.of(method, dataset, wanted)
    is_right = None if labels is None else read_labels(labels, searched.queries, searched.video_ids)
    keep_scores = trec is not None or is_right is not None
    examination = runs.examine(method, searched, device=device, keep_scores=keep_scores)
    figures, name = examination.figures(), dataset.name
    if is_right is not None:
        figures |= runs.multi_recalls(examination, is_right)
    remarks = runs.remarks_on_method(method) + runs.remarks(examination.report)
    if not split:
        remarks = runs.remarks_on_reporting(dataset) + remarks
    counts = {"videos": len(searched), "queries": len(searched.queries)}
    head = "\n".join([f"{wanted}: {_counts(**counts)}", *(f"note: {remark}" for remark in remarks)])
    text = runs.table({model: figures}, table_format)
    if table_format in ("text", "markdown"):
        printed = paper_results.beside(name, model, figures, table_format) if wanted != "train" else ""
        text = f"{head}\n\n{text}\n{printed}"
        if by_group:
            grouped = comparison.recalls_by_group(examination, dataset, searched)
            text += f"\n{tables.FORMATS[table_format](grouped, digits={'queries': 0})}"
    elif not as_json:  # csv and latex output contains the table only, so that programs can read it
        print(head, file=sys.stderr)
    result = {"model": model, "split": wanted, **counts, "remarks": remarks, "figures": figures}
    if by_group:
        result["groups"] = comparison.recalls_by_group(examination, dataset, searched)
    print_result(as_json, result | {"paper": paper_results.PRINTED.get(name)}, text)
    if trec is not None:
        runs.write_trec(trec, examination, searched)


@app.command(examples=("midreel backbones",))
def backbones(as_json: AsJson = False) -> None:
    """List backbones: widths, frames a vector, languages, licences.

    Any folder or hub id of the same kind works too.
    """
    from midreel.features.backbones.known import KNOWN

    print_result(as_json, {"backbones": [each.to_dict() for each in KNOWN]}, _listed(KNOWN))


def _listed(backbones: "Sequence[Known]") -> str:
    lines = []
    for each in backbones:
        frames = "1 frame" if each.window == 1 else f"{each.window} frames"
        facts = f"width {each.width}, {frames} a vector, texts: {each.languages or 'none'}, licence {each.licence}"
        lines += [each.spec, f"    {facts}"]
        lines += [] if each.installed else [f"    pip install 'midreel[{each.needs}]'"]
    return "\n".join(lines)


@app.command(examples=("midreel methods --long", "midreel methods --expected --dataset tvr"))
def methods(
    long: Annotated[bool, typer.Option("--long", help="Also print papers, and datasets with a recipe.")] = False,
    expected: Annotated[bool, typer.Option("--expected", help="Print the published results instead.")] = False,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="Results of this method.", show_default="every method"),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="NAME", help="Results on this dataset.", show_default="every dataset"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods.

    --json prints their papers and the datasets with a recipe.
    --expected prints what papers report for each method, dataset and
    kind of features, with the source.
    """
    if not expected and (method or dataset):
        raise BadSetting("--method and --dataset select published results. Add --expected.")
    from midreel import recipes
    from midreel.cli import tables
    from midreel.methods import METHODS
    from midreel.recipes import published

    if expected:
        results = published.find(method, dataset)
        print_result(as_json, {"results": [each.to_dict() for each in results]}, tables.published_results(results))
        return
    found: dict[str, dict[str, Any]] = {
        name: {
            "paper": made.paper.title,
            "reconstruction": made.reconstruction,
            "recipes": sorted(recipes.RECIPES.get(name, ())),
        }
        for name, made in sorted(METHODS.items())
    }
    rows = [
        (
            name,
            METHODS[name].paper.method + (" (reconstruction)" if each["reconstruction"] else ""),
            ", ".join(each["recipes"]) or "-",
        )
        for name, each in found.items()
    ]
    text = tables.columns(("method", "paper", "recipes"), rows) if long else "\n".join(found)
    print_result(as_json, found, text)


@app.command(
    examples=(
        "midreel import-checkpoint best.ckpt --out models/msc-tvr",
        "midreel import-checkpoint model.ckpt --out models/bgm --set method=bgm_net",
    )
)
def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A checkpoint of the authors' code, such as best.ckpt.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Write the model to this new folder.")],
    changes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="SETTING=VALUE", help="Supply a setting that the file lacks: temperature=0.09. Repeatable."
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Convert a released checkpoint.

    Reads files of MSC, GMMFormer, GMMFormer v2, MS-SL, BGM-Net, DL-DKD, DL-DKD++
    and AMDNet. Writes a model folder. Code in the checkpoint is never executed.
    """
    settings = parse_settings(changes)
    from midreel.methods import released

    imported = released.import_checkpoint(file, out, settings)
    print_result(as_json, imported.to_dict(), imported.text)


@app.command(examples=("midreel export-model runs/mine exported --onnx",))
def export_model(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a model folder.")],
    out: Annotated[Path, typer.Argument(help="Write the exported model to this new folder.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also export both encoders to ONNX, and compare them with torch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export a trained model for sharing.

    Writes the weights, the settings and a model card.
    """
    from midreel.experiments import model_export

    exported = model_export.export_model(run, out, onnx=onnx)
    print_result(as_json, exported.to_dict(), exported.text)


def _videos(number: int) -> str:
    return f"{number:,} video{'s' * (number != 1)}"


def _counts(videos: int, queries: int) -> str:
    return f"{_videos(videos)}, {queries:,} {'query' if queries == 1 else 'queries'}"


def parse_settings(changes: Sequence[str]) -> dict[str, Any]:
    """Parse the values of --set: ["width=64", "clips=uniform"] -> {"width": 64, "clips": "uniform"}."""
    pairs = [change.partition("=") for change in changes]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise BadSetting(f"--set {name}{equals}{value} is incomplete, expected SETTING=VALUE. Try --set width=64.")
    return {name: _value(text) for name, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text  # a word such as uniform is not JSON
