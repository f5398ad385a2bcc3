"""Commands for learning from users: feedback and adapt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midreel.cli.commands import AsJson, Commands, Device, SearchLibrary, print_result
from midreel.cli.models import make_form
from midreel.errors import BadSetting

if TYPE_CHECKING:
    from midreel.library.feedback import Feedback
    from midreel.library.records import Records, Video

app = Commands()


@app.command(
    examples=(
        "midreel feedback midreel-library",
        'midreel feedback midreel-library "a dog jumps" dogs.mp4 --moment 0:12-0:17',
        'midreel feedback midreel-library "a dog jumps" cats.mp4 --not-this',
        "midreel feedback midreel-library --export ~/Videos/annotations.jsonl",
    )
)
def feedback(
    library: SearchLibrary,
    query: Annotated[str | None, typer.Argument(help="Add feedback on this sentence.")] = None,
    video: Annotated[str | None, typer.Argument(help="The video it is about: a file or an id.")] = None,
    moment: Annotated[
        str | None, typer.Option(metavar="START-END", help="The moment in the video.", show_default="the whole video")
    ] = None,
    not_this: Annotated[bool, typer.Option("--not-this", help="The video is not what QUERY describes.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what says 'this is it' as annotations (JSONL).")
    ] = None,
    delete: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="Delete the feedback with this id. Repeatable.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all feedback.")] = False,
    as_json: AsJson = False,
) -> None:
    """List, add, export or delete the feedback of a library.

    Feedback says whether a video is what a query describes.
    The search page adds it with the buttons "This is it" and "Not this".
    It stays in the library. midreel adapt learns from it.
    """
    from contextlib import closing

    from midreel.library import feedback as feedbacks
    from midreel.library.storage import at

    actions = {"QUERY": query is not None, "--export": export is not None, "--delete": bool(delete), "--clear": clear}
    given = [name for name, is_given in actions.items() if is_given]
    if len(given) > 1:
        raise BadSetting(f"{' and '.join(given)} are given, expected one of them. See midreel feedback --help.")
    if (query is None) != (video is None):
        raise BadSetting(f"QUERY is {query!r} and VIDEO is {video!r}, expected both. See midreel feedback --help.")
    if query is None and (moment is not None or not_this):
        raise BadSetting("--moment or --not-this is given without QUERY and VIDEO, expected both. Add them.")
    with closing(at(library)) as storage:
        storage.settings()  # raises MissingLibrary
        log, catalogue = storage.feedback(), storage.open_catalogue()
        if query is not None and video is not None:
            start, end = _read_moment(moment)
            added = log.add(_find(catalogue, video, library), query, match=not not_this, start=start, end=end)
            print_result(as_json, added.to_dict(), f"feedback {_line(added, catalogue)}")
        elif export is not None:
            wrote = feedbacks.export(log.all(), catalogue, export)
            print_result(as_json, vars(wrote) | {"file": str(export)}, _exported(wrote, export))
        elif delete:
            for number in delete:
                log.remove(number)
            print_result(as_json, {"deleted": delete}, f"deleted {', '.join(map(str, delete))}")
        elif clear:
            number = log.clear()
            print_result(as_json, {"deleted": number}, f"deleted {_pieces(number)}")
        else:
            found = log.all()
            lines = [_line(each, catalogue) for each in found]
            print_result(
                as_json,
                {"library": str(library), "feedback": [_values(each, catalogue) for each in found]},
                "\n".join([*lines, _pieces(len(found)) + f", {sum(each.match for each in found):,} say 'this is it'"]),
            )


def _read_moment(text: str | None) -> tuple[float | None, float | None]:
    """Split START-END into seconds. Without a text, both are None.

    >>> _read_moment("0:12-1:00")
    (12.0, 60.0)
    """
    if text is None:
        return None, None
    from midreel.library.filters import read_seconds

    start, dash, end = text.replace("–", "-").partition("-")  # noqa: RUF001  midreel search prints this dash
    if not dash:
        raise BadSetting(f"the moment is {text!r}, expected START-END, such as 0:12-0:17")
    return read_seconds(start.strip()), read_seconds(end.strip())


def _find(catalogue: "Records", video: str, library: str) -> "Video":
    """Return the video with this id or in this file. Raise BadSetting if the library has none.

    Args:
        catalogue: The catalogue of the library.
        video: An id or a file.
        library: The library, for the message.
    """
    from midreel.library.scan import absolute

    found = catalogue.video(video) or catalogue.video_at(absolute(Path(video)))
    if found is None:
        raise BadSetting(f"the video is {video!r}, expected a file or an id in {library}. Index it first.")
    return found


def _values(feedback: "Feedback", catalogue: "Records") -> dict[str, Any]:
    return feedback.to_dict() | {"paths": [str(path) for path in catalogue.paths(feedback.video_id)]}


def _line(feedback: "Feedback", catalogue: "Records") -> str:
    """Return feedback as a line: id, verdict, moment, file and query."""
    from midreel.library.filters import span
    from midreel.library.scan import shown

    paths = catalogue.paths(feedback.video_id)
    name = shown(paths[0]) if paths else f"{feedback.video_id} (not in the library)"
    return f"{feedback.id:>4}  {feedback.verdict:<10}  {span(feedback.start, feedback.end)}  {name}  “{feedback.query}”"


def _pieces(number: int) -> str:
    return f"{number:,} piece{'s' * (number != 1)} of feedback"


def _exported(wrote: Any, path: Path) -> str:
    """Return what an export wrote and left out, as text."""
    left = [f"{wrote.not_this:,} that say 'not this'"] if wrote.not_this else []
    left += [f"{wrote.elsewhere:,} on videos outside {path.absolute().parent}"] if wrote.elsewhere else []
    text = f"wrote {wrote.queries:,} sentence{'s' * (wrote.queries != 1)} to {path}"
    return text + (f". Left out: {' and '.join(left)}" if left else "")


@app.command(examples=("midreel adapt midreel-library", "midreel adapt midreel-library --undo"))
def adapt(
    library: SearchLibrary,
    undo: Annotated[bool, typer.Option("--undo", help="Search as before the first adaptation.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Learn from the feedback of a library.

    Searches like those that got feedback change. All other searches stay as
    they are. A part of the feedback is held out to measure the result. The
    library switches to it only if it is not worse there.
    Each run learns from all feedback again. Deleted feedback is forgotten.
    """
    from midreel.cli import console
    from midreel.experiments import adapt as adapting
    from midreel.library.storage import expect_library
    from midreel.library.writer import Writer

    expect_library(library)  # Writer.open would create it
    with console.bars() as progress, Writer.open(library, device=device) as writer:
        run = adapting.undo if undo else adapting.adapt
        report = run(writer, console.IndexingBar(progress))
        make_form(writer)
    print_result(as_json, report.to_dict(), report.text)
