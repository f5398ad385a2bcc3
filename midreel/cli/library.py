"""Commands for libraries: index, search, export, serve, info and doctor."""

import atexit
import gc
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midreel.cli.commands import (
    FAILED,
    PARTIAL,
    AsJson,
    ClusterAddress,
    Commands,
    Device,
    Engine,
    SearchLibrary,
    ShardName,
    Workers,
    print_result,
)
from midreel.cli.models import make_form
from midreel.errors import BadPackage, BadSetting
from midreel.library.place import checked

if TYPE_CHECKING:
    from midreel.library.searcher import Searcher

app = Commands()

Conditions = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="Search only videos that match (see Filters). Repeatable."),
]
_MODEL_PANEL = "Model of a new library"
_OPERATORS = """Operators, in capitals:
  A AND B   both in the same video     A OR B     the better of two
  A THEN B  first A, later B           A NOT B    A in a moment without B
  "A AND B" in double quotes is plain text. OR binds first, AND last."""
_FILTERS = """Filters:
  folder=PATH                in this folder, or in one of several
  tag=WORD                   has this tag
  after=DATE, before=DATE    date of the file: 2024, 2024-05-31 or 7d (ago)
  longer=TIME, shorter=TIME  duration, in seconds or as m:ss"""


@app.command(
    examples=(
        "midreel index ~/Videos --backbone openai/clip-vit-base-patch32",
        "midreel index",
        "midreel index ~/Videos/trip --tag holidays --library ~/search",
    )
)
def index(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Videos, and folders of videos.", show_default="every path indexed so far"),
    ] = None,
    library: Annotated[
        str,
        typer.Option("--library", metavar="FOLDER|URL", help="Create or update this library.", callback=checked),
    ] = "midreel-library",
    tag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Tag all videos in PATH. Repeatable.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry unreadable files and rebuild damaged entries.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove videos whose folder is missing, and free their space.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and index files as they change.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Polling interval of --watch.")] = 5.0,
    shard: ShardName = None,
    cluster: ClusterAddress = None,
    workers: Workers = None,
    min_change: Annotated[
        float,
        typer.Option(metavar="SHARE", min=0, max=1, help="Encode only frames that differ by SHARE, such as 0.02."),
    ] = 0.0,
    as_json: AsJson = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A run, model folder, hub id, zero-shot, zero-shot-clips or tf-prvr.",
            show_default="the library's, or zero-shot",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A hub id, local-dir:FOLDER, offline or tiny-clip.",
            show_default="the model's, a CLIP of the hub, or offline",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Encode N frames per second.",
            show_default="the model's, or 2",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    device: Device = "cpu",
    engine: Engine = "auto",
) -> None:
    """Add videos to a library, or update it.

    New and changed files are decoded. Unchanged and moved files are not.
    Files that were deleted are removed from the library.
    Unreadable files are listed and skipped, and the exit code is 3.
    To continue after an interruption, run the command again.
    With --shard, it is a part. midreel library merge joins the parts.
    """
    from midreel.cli import console
    from midreel.cli.nodes import writer_actors
    from midreel.features.backbones.choice import VARIABLE
    from midreel.features.shards import Shard
    from midreel.library import diff, indexer, scan
    from midreel.library.storage import at
    from midreel.library.writer import Wanted, Writer

    places = paths or []
    part = None if shard is None else Shard.parse(shard)
    if watch and (part is not None or cluster is not None):
        raise BadSetting("--watch was given with --shard or --cluster, expected one of them. Index first, then watch.")
    if min_change and cluster is not None:
        raise BadSetting(f"--min-change is {min_change:g}, expected 0 with --cluster. Leave one of them out.")
    with closing(at(library)) as storage:
        is_new = not storage.exists()
        if storage.folder is not None:
            scan.expect_apart(places, storage.folder)
        elif part is not None:
            raise BadSetting(
                f"--shard is {shard}, expected none for a library in a database. Run the command on all machines: they "
                f"share the files."
            )
        if is_new:
            diff.expect_named(library, places)
            if part is not None and not (model or backbone or os.environ.get(VARIABLE)):
                raise BadSetting(  # the default depends on the machine, and parts must have the same backbone
                    f"--shard is {shard} without a backbone, expected the same for all parts. Name it: --backbone NAME"
                )
    if is_new or not (watch or forget):
        scan.expect_any(places, is_new=is_new)
    with console.bars() as progress:
        bar = console.IndexingBar(progress)
        wanted = Wanted(model=model, backbone=backbone, rate=rate)
        here = "cpu" if cluster else device
        with (
            Writer.open(library, wanted, device=here, engine=engine) as writer,
            writer_actors(cluster, writer, device=device, engine=engine) as nodes,
        ):
            if is_new and (model, backbone) == (None, None):
                print(_chosen(writer.settings.backbone), file=sys.stderr)
            if part is not None:
                part.record(Path(library), finished=False)
            report = indexer.index(
                writer,
                places,
                tags=tag or [],
                retry=retry,
                forget=forget,
                workers=nodes.num_threads if nodes else workers,
                encode=nodes.encode if nodes else None,
                settle=None if part is None else diff.only_shard(part),
                min_change=min_change,
                progress=bar,
            )
            if part is not None:
                part.record(Path(library), finished=True)
            if engine != "torch":
                make_form(writer)
    print_result(as_json, report.to_dict(), report.text)
    if watch:
        from midreel.library import watch as watching

        print(f"watching for changes. Stop with Ctrl-C. To search: midreel search {library} QUERY", file=sys.stderr)
        watching.watch(
            library,
            places,
            every=every,
            tags=tag or [],
            forget=forget,
            workers=workers,
            min_change=min_change,
            device=device,
            on_report=lambda found: print(json.dumps(found.to_dict()) if as_json else found.text, flush=True),
            on_error=lambda error: print(f"midreel: {error}", file=sys.stderr, flush=True),
        )
    if report.is_partial:
        raise typer.Exit(PARTIAL)


def _chosen(backbone: str) -> str:
    """Say which backbone a new library has if the user named none, and what it cannot do."""
    limits = {
        "offline": "offline, which knows 1,000 kinds of things. To use a CLIP: --backbone local-dir:FOLDER",
        "tiny-clip": "tiny-clip, which knows generated videos only. For real videos, choose another: --backbone",
    }
    return f"midreel: the backbone is {limits.get(backbone, backbone)}"


@app.command(examples=("midreel reindex midreel-library --model runs/mine",))
def reindex(
    library: SearchLibrary,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A run, model folder, hub id, zero-shot, zero-shot-clips or tf-prvr.",
            show_default="the library's model",
        ),
    ] = None,
    device: Device = "cpu",
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Switch a library to another model, without decoding.

    The index is rebuilt from the stored features.
    Searches use the old index until the new one is complete.
    To continue after an interruption, run the command again.
    """
    from midreel.cli import console
    from midreel.library import reindex as reindexing
    from midreel.library.storage import expect_library
    from midreel.library.writer import Writer

    expect_library(library)  # Writer.open would create it
    with console.bars() as progress, Writer.open(library, device=device, engine=engine) as writer:
        report = reindexing.reindex(writer, model, console.IndexingBar(progress))
        if engine != "torch":
            make_form(writer)
    print_result(as_json, report.to_dict(), report.text)
    if report.failed:
        raise typer.Exit(PARTIAL)


@app.command(
    notes=f"{_OPERATORS}\n\n{_FILTERS}",
    examples=(
        "midreel search midreel-library a dog jumps into a pool",
        "midreel search midreel-library a dog OR a puppy NOT at night",
        "midreel search midreel-library --like beach.mp4@1:30 --filter after=2024-05",
    ),
)
def search(
    library: SearchLibrary,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="What happens in the moment you look for.")
    ] = None,
    top: Annotated[int, typer.Option("-n", "--top", metavar="N", min=1, help="Show the N best videos.")] = 10,
    conditions: Conditions = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="VIDEO@TIME|IMAGE", help="Search by image, with or without words: photo.jpg, clip.mp4@1:30."
        ),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Search for each line of a text file instead.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Score all videos. Slower, but not approximate.")] = False,
    threshold: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="Least probability of a confident match.")
    ] = 0.5,  # ops.calibration.THRESHOLD, which --help must not import
    subtitles: Annotated[
        float | None,
        typer.Option(
            metavar="W", min=0, max=1, help="Weight of what is said, against the picture.", show_default="0.3"
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the midreel serve at URL, or none: do not ask one.",
            show_default="the server that runs, if any",
        ),
    ] = None,
    device: Device = "cpu",
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Find videos and moments by a description or an image.

    The percentage is the probability that a video matches.
    If it is below --threshold for all videos, the result says so first.
    The curve shows how well each part of a video matches, from start to end.
    Damaged videos are listed and skipped, and the exit code is 3.
    """
    _use_one_thread_in_numpy()
    # Without it, a seventh of the processor time of a cold search is the last collection of garbage, as Python ends.
    atexit.register(gc.freeze)
    query = " ".join(words) if words else None  # so that a query needs no quotes
    if query is not None and queries is not None:
        raise BadSetting("QUERY and --queries are given, expected one of them. See midreel search --help.")
    number = sum(each is not None for each in (query, like, queries))
    limits = {"filter": conditions, "like": like, "queries": queries, "exact": exact, "json": as_json}
    limits |= {"device": device != "cpu", "engine": engine != "auto", "subtitles": subtitles is not None}
    if query is not None and server != "none" and (server is not None or not any(limits.values())):
        from midreel.cli.served import answer

        shown = answer(library, query, top=top, threshold=threshold, server=server, limits=limits)
        if shown is not None:
            print(shown)
            return
    from midreel.cli.results import num_moments, read_example, read_queries, table
    from midreel.library.filters import Filter
    from midreel.library.hits import is_confident
    from midreel.library.query import Part, parse, with_image
    from midreel.library.searcher import Searcher
    from midreel.library.storage import is_library

    if not number and is_library(library):
        raise BadSetting(f'there is no query, expected a sentence. Run: midreel search {library} "a sentence"')
    if not number:
        raise BadSetting(f'{library} is not a library, expected one. Run: midreel search LIBRARY "a sentence"')

    if words and not is_library(library) and is_library(words[-1]):
        raise BadSetting(f"{words[-1]} is a library, expected a query. The library comes first: LIBRARY QUERY.")
    options: dict[str, Any] = {"top": top, "exact": exact, "where": Filter.parse(conditions or [])}
    texts = [query] if query is not None else read_queries(queries) if queries is not None else []
    parsed = [parse(text) for text in texts]
    asked = texts
    if like is not None:
        parsed = [with_image(each, *read_example(like)) for each in parsed] or [Part("", *read_example(like))]
        asked = [f"{like} + {text}" for text in texts] or [like]
    with Searcher.open(library, device=device, engine=engine) as searcher:
        searcher.subtitles = searcher.subtitles if subtitles is None else subtitles
        found = searcher.search_all(parsed, **options)
        unsearchable, problem = searcher.unsearchable(), _why_empty(searcher, library, conditions or [])
    results = [
        {
            "query": text,
            "confident": is_confident(hits, threshold),
            "threshold": threshold,
            "hits": [hit.to_dict() for hit in hits],
        }
        for text, hits in zip(asked, found, strict=True)
    ]
    tables = (
        table(text, hits, threshold=threshold, moments=num_moments(each))
        for text, hits, each in zip(asked, found, parsed, strict=True)
    )
    result = {"library": str(library), "results": results, "unsearchable": [str(path) for path in unsearchable]}
    print_result(as_json, result, "\n\n".join(tables))
    if problem:
        print(f"midreel: {problem}", file=sys.stderr)
    if unsearchable:
        _warn_of_damage(unsearchable, library)
        raise typer.Exit(PARTIAL)


def _use_one_thread_in_numpy() -> None:
    """Spare numpy the start of its own threads. The index and onnxruntime have theirs, and numpy's part is small.

    Its library of linear algebra reads the variable when numpy is imported.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _why_empty(searcher: "Searcher", library: str, conditions: Sequence[str]) -> str:
    """Return the reason why every search is empty, or "" if there are videos to search."""
    from midreel.library.scan import shown

    name = shown(library)
    if not len(searcher):
        return f"{name} contains no videos. Add some: midreel index VIDEOS --library {name}"
    if conditions and not searcher.num_matching(conditions):
        return (
            f"none of the {len(searcher):,} videos matches {' '.join(conditions)}. List the folders and tags: "
            f"midreel info {name}"
        )
    return ""


def _warn_of_damage(videos: Sequence[Path], library: str) -> None:
    from midreel.library.scan import shown

    names = shown(videos[0]) + (f" and {len(videos) - 1:,} more" if len(videos) > 1 else "")
    print(
        f"midreel: {_count(len(videos), 'damaged video')} skipped: {names}. "
        f"Repair: midreel index --library {shown(library)} --retry",
        file=sys.stderr,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


_NOTICEABLE = 0.1  # seconds by which a clip may start early without a warning
_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".m3u": "m3u",
    ".m3u8": "m3u",
    ".edl": "edl",
    ".otio": "otio",
    ".fcpxml": "fcpxml",
    ".png": "sheet",
    "": "clips",
}


@app.command(
    notes=f"{_OPERATORS}\n\n{_FILTERS}",
    examples=(
        'midreel export midreel-library "a dog jumps" clips --re-encode',
        'midreel export midreel-library "a dog jumps" dogs.csv -n 50 --moments 3',
        'midreel export midreel-library "a dog jumps" dogs.otio',
    ),
)
def export(
    library: SearchLibrary,
    query: Annotated[str, typer.Argument(help="What happens in the moments you look for.")],
    out: Annotated[Path, typer.Argument(help="A folder for clips, or .csv, .m3u, .edl, .otio, .fcpxml or .png.")],
    top: Annotated[int, typer.Option("-n", "--top", metavar="N", min=1, help="Export the N best videos.")] = 10,
    moments: Annotated[int, typer.Option(metavar="N", min=1, help="Export up to N moments of each video.")] = 1,
    conditions: Conditions = None,
    re_encode: Annotated[
        bool, typer.Option("--re-encode", help="Re-encode to cut at the exact frame. Copies start at a key frame.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite existing files.")] = False,
    device: Device = "cpu",
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Export the moments that a search finds.

    Writes clips, a table, a playlist, a timeline or a contact sheet.
    Moments of unreadable files are listed and skipped, and the exit code is 3.
    """
    if out.suffix.lower() not in _FORMAT_OF_SUFFIX:
        suffixes = ", ".join(filter(None, _FORMAT_OF_SUFFIX))
        raise BadSetting(f"{out} ends in {out.suffix}, expected one of {suffixes}, or no suffix for a folder of clips.")
    from midreel.library.export import FoundMoment
    from midreel.library.export import export as write
    from midreel.library.filters import Filter
    from midreel.library.searcher import Searcher

    with Searcher.open(library, device=device, engine=engine) as searcher:
        hits = searcher.search(query, top=top, where=Filter.parse(conditions or []))
        unsearchable, problem = searcher.unsearchable(), _why_empty(searcher, library, conditions or [])
    if problem:
        raise BadSetting(problem)
    found = [
        FoundMoment(
            path=hit.path,
            start=moment.start,
            end=moment.end,
            score=moment.score,
            query=query,
            confidence=hit.confidence,
        )
        for hit in hits
        for moment in hit.moments[:moments]
    ]
    exported = write(found, out, _FORMAT_OF_SUFFIX[out.suffix.lower()], exact=re_encode, overwrite=overwrite)
    failed = [{"path": str(moment.path), "reason": reason} for moment, reason in exported.failed]
    lines = [*map(str, exported.files), *(f"failed {each['path']}: {each['reason']}" for each in failed)]
    result = {"files": [str(path) for path in exported.files], "failed": failed, "early": exported.early}
    print_result(as_json, result, "\n".join(lines))
    if exported.early > _NOTICEABLE:
        print(
            f"midreel: copied clips start at a key frame, up to {exported.early:.1f} s before the moment. "
            f"To cut at the exact frame, add --re-encode.",
            file=sys.stderr,
        )
    if unsearchable:
        _warn_of_damage(unsearchable, library)
    if exported.failed or unsearchable:
        raise typer.Exit(PARTIAL)


@app.command(examples=("midreel info midreel-library",))
def info(library: SearchLibrary, as_json: AsJson = False) -> None:
    """Show the contents and the settings of a library.

    Also lists unreadable and partly readable files.
    """
    from midreel.library.summary import summarise

    summary = summarise(library)
    print_result(as_json, summary.to_dict(), summary.text)


@app.command(
    examples=(
        "midreel serve midreel-library",
        "midreel serve midreel-library --host 0.0.0.0 --token-file token.txt",
        "midreel serve postgresql://me@db/films --map /mnt/films=s3://films",
    )
)
def serve(
    library: SearchLibrary,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen on ADDRESS. Any but localhost requires a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Listen on port N. 0 picks a free one.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require the token in FILE.", show_default="MIDREEL_TOKEN, or no token"),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Allow the page to index videos in FOLDER. Repeatable."),
    ] = None,
    location: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="Read files of folder OLD from NEW: a folder, or s3://…"),
    ] = None,
    device: Device = "cpu",
    engine: Engine = "auto",
) -> None:
    """Serve a search page and an HTTP API.

    Stop with Ctrl-C. A running indexing job finishes its current video first.
    """
    # Threads of torch that spin while they wait take the cores from the threads that answer: on two busy cores, a
    # search takes four times as long. OpenMP reads the variable when torch is imported.
    os.environ["GOMP_SPINCOUNT"] = "0"
    _use_one_thread_in_numpy()
    from midreel.io.locations import PathMap

    try:
        from midreel.server import runner
    except ModuleNotFoundError as error:
        raise BadPackage(
            f"{error.name} is not installed, expected for midreel serve. Install it: pip install 'midreel[server]'"
        ) from error

    try:
        runner.serve(
            library,
            host=host,
            port=port,
            token=runner.read_token(token_file),
            roots=root or [],
            locations=PathMap.parse(location or []),
            device=device,
            engine=engine,
            on_ready=lambda address: print(f"{address}\nstop with Ctrl-C", flush=True),
        )
    except KeyboardInterrupt:
        print("server stopped", file=sys.stderr)


def _checked(library: str | None) -> str | None:
    return library if library is None else checked(library)


@app.command(examples=("midreel doctor", "midreel doctor midreel-library"))
def doctor(
    library: Annotated[str | None, typer.Argument(help="Also check this library.", callback=_checked)] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, and optionally a library.

    Checks versions, decoder, models, disk and permissions, one line each.
    Each problem comes with a remedy. The exit code is 1 if a check failed.
    """
    from midreel.cli import doctor as checks

    diagnosis = checks.examine(library)
    print_result(as_json, diagnosis.to_dict(), diagnosis.text)
    if not diagnosis.ok:
        raise typer.Exit(FAILED)
