"""Commands that merge the parts of several machines: of libraries, and of feature stores."""

from pathlib import Path
from typing import Annotated

import typer

from midreel.cli.commands import PARTIAL, AsJson, Commands, Device, print_result
from midreel.cli.research import data

app = Commands(help="Merge libraries.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Merge libraries."""


@app.command(examples=("midreel library merge part-1 part-2 --library all",))
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PART", help="Libraries, such as those of --shard.")],
    library: Annotated[Path, typer.Option("--library", metavar="FOLDER", help="Create or update this library.")],
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Copy the videos of several libraries into one.

    All must have one model, backbone and rate. Video files are not read.
    Parts whose run did not finish are merged as far as they are, and listed.
    The exit code is then 3. Run the command again after their runs.
    """
    from midreel.cli import console
    from midreel.library.merge import merge as merge_libraries

    with console.bars() as progress:
        task = progress.add_task("videos", total=None, note="")
        report = merge_libraries(
            parts, library, device=device, progress=lambda video_id: progress.update(task, advance=1, note=video_id)
        )
    print_result(as_json, report.to_dict(), report.text)
    if report.is_partial:
        raise typer.Exit(PARTIAL)


@data.command("merge", examples=("midreel data merge features.part-*.h5 --out features.h5",))
def merge_features(
    parts: Annotated[list[Path], typer.Argument(metavar="PART", help="Feature stores, such as those of --shard.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Create or extend this feature store.")],
    as_json: AsJson = False,
) -> None:
    """Copy the features of several stores into one.

    All must have one backbone and rate. What FILE has is skipped.
    Parts whose run did not finish are listed, and the exit code is then 3.
    """
    from midreel.cli import console
    from midreel.features import shards
    from midreel.features.stores.merge import merge_stores

    with console.bars() as progress:
        videos, texts = merge_stores(parts, out, console.ExtractionBar(progress, "features", 0))
    missing = shards.unfinished(parts)
    failed = videos.failed | texts.failed
    lines = [
        f"{kind}: {len(report.done):,} added, {len(report.skipped):,} known, {len(report.failed):,} failed"
        for kind, report in {"videos": videos, "queries": texts}.items()
    ]
    lines += [f"failed {name}: {reason}" for name, reason in failed.items()]
    lines += [f"incomplete {part}: {reason}" for part, reason in missing.items()]
    result = {
        "store": str(out),
        "videos": {"added": len(videos.done), "known": len(videos.skipped)},
        "queries": {"added": len(texts.done), "known": len(texts.skipped)},
        "failed": failed,
        "unfinished": missing,
    }
    print_result(as_json, result, "\n".join([*lines, f"features: {out}"]))
    if failed or missing:
        raise typer.Exit(PARTIAL)
