"""Commands of libraries: index, search, export, serve, and look after them."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midreel.cli.commands import FAILED, PARTIAL, AsJson, Commands, Device, print_result
from midreel.errors import BadSetting

if TYPE_CHECKING:
    from midreel.library.searcher import Searcher

app = Commands()

SearchLibrary = Annotated[Path, typer.Argument(metavar="LIBRARY", help="What midreel index made.")]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="KEY=VALUE",
        help="Search only some videos: folder=PATH, tag=WORD, after=DATE and before=DATE (2024, 2024-05, 2024-05-31, "
        "or 7d for a week ago; of the file), longer=TIME and shorter=TIME (seconds or m:ss). Repeatable: any of the "
        "folders, all of the rest.",
    ),
]


@app.command()
def index(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATHS...", help="Videos, and folders of videos; unless given, all it ever was given."),
    ] = None,
    library: Annotated[
        Path, typer.Option("--library", help="Where the index is kept: a new folder, or a library.")
    ] = Path("midreel-library"),
    model: Annotated[
        str | None,
        typer.Option(
            help="The folder of a trained model or run, or zero-shot (a new library, unless given) or zero-shot-clips."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="As for extract; unless given, the one that the model was trained on, or tiny-clip."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Frames per second; unless given, as the model was trained, or 2.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Give all videos in PATHS this tag. Repeatable.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and index what is new, changed or gone.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds from look to look, with --watch.")] = 5.0,
    retry: Annotated[
        bool, typer.Option("--retry", help="Do again what could not be read: files, and damaged features and tokens.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Let go of videos whose whole folder is missing or empty, and make room.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="How many videos to decode at a time.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Index videos, so that they can be searched: all that is new or has changed; goes on where it was interrupted.

    A file that moved is not decoded again, one that is gone leaves. A file that cannot be read is named and left out,
    and the exit code is 3.
    """
    from midreel.cli import console
    from midreel.library import indexer, scan
    from midreel.library.diff import expect_named
    from midreel.library.layout import Layout
    from midreel.library.session import Wanted, Writer

    places = paths or []
    is_new = not Layout(library).exists()
    scan.expect_apart(places, library)
    if is_new:
        expect_named(library, places)
    if is_new or not (watch or forget):
        scan.expect_any(places)
    with console.bars() as progress:
        bar = console.IndexingBar(progress)
        with Writer.open(library, Wanted(model=model, backbone=backbone, rate=rate), device=device) as writer:
            if is_new and (model, backbone) == (None, None):
                print(_KNOWS_LITTLE, file=sys.stderr)
            report = indexer.index(
                writer, places, tags=tag or [], retry=retry, forget=forget, workers=workers, progress=bar
            )
    print_result(as_json, report.to_dict(), report.text)
    if watch:
        from midreel.library import watch as watching

        print(f'watching; end with Ctrl-C. In another window: midreel search {library} "…"', file=sys.stderr)
        watching.watch(
            library,
            places,
            every=every,
            tags=tag or [],
            forget=forget,
            workers=workers,
            device=device,
            told=lambda found: print(json.dumps(found.to_dict()) if as_json else found.text, flush=True),
            warned=lambda error: print(f"midreel: {error}", file=sys.stderr, flush=True),
        )
    if report.is_partial:
        raise typer.Exit(PARTIAL)


_KNOWS_LITTLE = (
    "the backbone is tiny-clip, which comes with midreel and knows the drawn videos of midreel playhouse, nothing "
    "else; for videos of the world choose a CLIP: --backbone openai/clip-vit-base-patch32, or local-dir:FOLDER"
)


@app.command()
def reindex(
    library: SearchLibrary,
    model: Annotated[
        str | None,
        typer.Option(
            help="The folder of a trained model or run, or zero-shot or zero-shot-clips; unless given, the same."
        ),
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Search a library with another model, without decoding anything: the features are kept.

    The old index serves until the new one is there. Interrupted, it goes on where it was when it is run again.
    """
    from midreel.cli import console
    from midreel.library import reindex as reindexing
    from midreel.library.layout import Layout
    from midreel.library.session import Writer

    Layout(library).settings()  # a library that is not there is not to be made
    with console.bars() as progress, Writer.open(library, device=device) as writer:
        report = reindexing.reindex(writer, model, console.IndexingBar(progress))
    print_result(as_json, report.to_dict(), report.text)
    if report.failed:
        raise typer.Exit(PARTIAL)


@app.command()
def search(
    library: SearchLibrary,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="What happens in the part that you look for.")
    ] = None,
    top: Annotated[int, typer.Option("-n", "--top", min=1, help="How many videos to show.")] = 10,
    conditions: Conditions = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with everything, which is slower.")] = False,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="VIDEO@TIME|IMAGE", help="Instead of a query: what looks like film.mp4@1:30, or photo.jpg."
        ),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead of a query: a text file with one on each line.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Find the videos, and the moments in them, that a sentence describes, or that look like an image.

    The curve shows how well each part of the video fits. A video that is damaged in the library is named and left out,
    and the exit code is 3.
    """
    query = " ".join(words) if words else None  # quotes are not needed
    if sum(each is not None for each in (query, like, queries)) != 1:
        raise BadSetting("search needs a query, --like or --queries, and one of them only; see midreel search --help")
    from midreel.cli.results import read_example, read_queries, table
    from midreel.library.filters import Filter
    from midreel.library.layout import Layout
    from midreel.library.searcher import Searcher

    if words and not Layout(library).exists() and Layout(Path(words[-1])).exists():
        raise BadSetting(f"{words[-1]} is a library; it comes first, and then the query, expected: LIBRARY QUERY")
    options: dict[str, Any] = {"top": top, "exact": exact, "where": Filter.parse(conditions or [])}
    with Searcher.open(library, device=device) as searcher:
        if like is not None:
            asked, found = [like], [searcher.search_like(*read_example(like), **options)]
        else:
            asked = [query] if query is not None else read_queries(queries or Path())
            found = searcher.search_all(asked, **options)
        unsearchable, why_none = searcher.unsearchable(), _why_none(searcher, library, conditions or [])
    results = [
        {"query": text, "hits": [hit.to_dict() for hit in hits]} for text, hits in zip(asked, found, strict=True)
    ]
    tables = (table(text, hits) for text, hits in zip(asked, found, strict=True))
    result = {"library": str(library), "results": results, "unsearchable": [str(path) for path in unsearchable]}
    print_result(as_json, result, "\n\n".join(tables))
    if why_none:
        print(f"midreel: {why_none}", file=sys.stderr)
    if unsearchable:
        _tell_of(unsearchable, library)
        raise typer.Exit(PARTIAL)


def _why_none(searcher: "Searcher", library: Path, conditions: list[str]) -> str:
    """Why nothing can be found, whatever is looked for; empty if something can."""
    from midreel.library.scan import shown

    name = shown(library)
    if not len(searcher):
        return f"{name} holds no videos yet; index some: midreel index VIDEOS --library {name}"
    if conditions and not searcher.num_matching(conditions):
        return (
            f"none of the {len(searcher):,} videos matches {' '.join(conditions)}; midreel info {name} says which "
            f"folders and tags there are"
        )
    return ""


def _tell_of(unsearchable: list[Path], library: Path) -> None:
    from midreel.library.scan import shown

    number = "1 video" if len(unsearchable) == 1 else f"{len(unsearchable):,} videos"
    first = shown(unsearchable[0])
    are, which = ("it is", first) if len(unsearchable) == 1 else ("they are", f"{first} and others")
    print(
        f"midreel: {number} of the library cannot be found, for {are} damaged: {which}; to make that good: midreel "
        f"index --library {shown(library)} --retry",
        file=sys.stderr,
    )


_NOTICED = 0.1  # seconds that a clip begins too early
_FORM_OF_ENDING = {".csv": "csv", ".m3u": "m3u", ".m3u8": "m3u", ".edl": "edl", ".png": "sheet", "": "clips"}


@app.command()
def export(
    library: SearchLibrary,
    query: Annotated[str, typer.Argument(help="What happens in the parts that you look for.")],
    out: Annotated[
        Path,
        typer.Argument(
            help="A folder for clips; or a file: .csv, .m3u (a playlist), .edl (an edit list), .png (a contact sheet)."
        ),
    ],
    top: Annotated[int, typer.Option("-n", "--top", min=1, help="Of how many videos.")] = 10,
    moments: Annotated[int, typer.Option(min=1, help="At most how many moments of each video.")] = 1,
    conditions: Conditions = None,
    re_encode: Annotated[
        bool, typer.Option("--re-encode", help="Cut clips at the very frame; copied ones begin at a key frame before.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Write the moments that a search finds as files: clips, or lists for players, cutters and spreadsheets.

    A moment whose file cannot be read is named and left out, and the exit code is 3.
    """
    if out.suffix.lower() not in _FORM_OF_ENDING:
        endings = ", ".join(filter(None, _FORM_OF_ENDING))
        raise BadSetting(f"{out} ends in {out.suffix}, expected {endings}, or no ending for a folder of clips")
    from midreel.library.export import FoundMoment
    from midreel.library.export import export as write
    from midreel.library.filters import Filter
    from midreel.library.searcher import Searcher

    with Searcher.open(library, device=device) as searcher:
        hits = searcher.search(query, top=top, where=Filter.parse(conditions or []))
        unsearchable, why_none = searcher.unsearchable(), _why_none(searcher, library, conditions or [])
    if why_none:
        raise BadSetting(why_none)
    found = [
        FoundMoment(path=hit.path, start=moment.start, end=moment.end, score=moment.score, query=query)
        for hit in hits
        for moment in hit.moments[:moments]
    ]
    exported = write(found, out, _FORM_OF_ENDING[out.suffix.lower()], exact=re_encode, overwrite=overwrite)
    failed = [{"path": str(moment.path), "reason": reason} for moment, reason in exported.failed]
    lines = [*map(str, exported.files), *(f"left out {each['path']}: {each['reason']}" for each in failed)]
    result = {"files": [str(path) for path in exported.files], "failed": failed, "early": exported.early}
    print_result(as_json, result, "\n".join(lines))
    if exported.early > _NOTICED:
        print(
            f"midreel: copied clips begin at a key frame, here up to {exported.early:.1f} s before the moment; to cut "
            f"at the very frame: --re-encode",
            file=sys.stderr,
        )
    if unsearchable:
        _tell_of(unsearchable, library)
    if exported.failed or unsearchable:
        raise typer.Exit(PARTIAL)


@app.command()
def info(library: SearchLibrary, as_json: AsJson = False) -> None:
    """Say what a library holds, what it was made with, and which files could not be read, or only in part."""
    from midreel.library.summary import summarise

    summary = summarise(library)
    print_result(as_json, summary.to_dict(), summary.text)


@app.command()
def serve(
    library: SearchLibrary,
    host: Annotated[str, typer.Option(help="Which address to listen on; others than this computer's need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8765,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must show; or set MIDREEL_TOKEN.")
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="A folder that may be indexed from the page, beside the library's own. Repeatable."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Search a library from a browser, and over HTTP: a page that plays the moments, and an API.

    Ends with Ctrl-C; a job that indexes ends with the video it is at, and nothing is lost.
    """
    # Threads of torch that wait by spinning take the cores from those that answer: on two busy cores, a search takes
    # four times as long. Read when torch is loaded.
    os.environ["GOMP_SPINCOUNT"] = "0"
    try:
        from midreel.server import runner
    except ModuleNotFoundError as error:
        raise BadSetting(
            f"serving needs {error.name}, which is not installed: pip install 'midreel[server]'"
        ) from error

    try:
        runner.serve(
            library,
            host=host,
            port=port,
            token=runner.read_token(token_file),
            roots=root or [],
            device=device,
            told=lambda address: print(f"{address}\nend with Ctrl-C", flush=True),
        )
    except KeyboardInterrupt:
        print("the server has stopped", file=sys.stderr)


@app.command()
def doctor(
    library: Annotated[
        Path | None, typer.Argument(help="A library to look at; without it, the current folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try whatever midreel needs, a line each: versions, decoder, models, disk; and say what to do where it fails.

    The exit code is 1 if something fails that midreel cannot do without.
    """
    from midreel.cli import doctor as checks

    diagnosis = checks.examine(library)
    print_result(as_json, diagnosis.to_dict(), diagnosis.text)
    if not diagnosis.ok:
        raise typer.Exit(FAILED)
