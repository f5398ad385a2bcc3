"""Moments that a search found, as files for other programs: clips, an edit list, a table, a playlist, a picture.

Whatever is written is whole or absent, and nothing that is there is overwritten unless that is asked for. Names of
files may hold any byte: a table has them as they are, a playlist as addresses, and the names of new files are made of
letters that every disk takes.
"""

import csv
import io
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from midreel.errors import BadSetting, MidreelError, UnknownName, Unwritable
from midreel.library.filters import outward, span
from midreel.media import cut, decode

COLUMNS = ("moment_rank", "query", "moment_score", "start", "end", "path")
MOST_EVENTS = 999  # of an edit list, whose numbers have three digits
FASTEST = 60  # frames a second of an edit list
DROPPING = (Fraction(30000, 1001), Fraction(60000, 1001))
USUAL_RATES = (Fraction(24000, 1001), *map(Fraction, (24, 25, 30, 48, 50, 60)), *DROPPING)
LONGEST_NAME = 120  # bytes of a clip's name, of the 255 that most disks take
NUM_STILLS, STILL_HEIGHT, STILL_WIDTH = 5, 120, 214  # of each moment on a contact sheet
MARGIN, LINE = 12, 22
ROW = STILL_HEIGHT + LINE + MARGIN


@dataclass(frozen=True, kw_only=True)
class FoundMoment:
    """A part of a file, in seconds, how well it fits, and the words that it was found by."""

    path: Path
    start: float | int
    end: float | int
    score: float | int
    query: str

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < float("inf"):
            raise BadSetting(f"a moment goes from {self.start} to {self.end} s, expected 0 <= start < end; fix it")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, which moments were left out, with the reason, and how many seconds before its moment a clip
    begins, at most."""

    files: list[Path]
    failed: list[tuple[FoundMoment, str]] = field(default_factory=list)
    early: float = 0.0


def export(
    moments: Sequence[FoundMoment],
    target: Path,
    form: str = "clips",
    *,
    exact: bool = False,
    overwrite: bool = False,
    frame_rate: Fraction | None = None,
) -> Exported:
    """Writes the moments, best first as they are given, as one of FORMS into `target`: a folder of clips, or a file.

    `exact` clips are encoded anew, from the frame at the start to the one at the end; others are copied, from the key
    frame before. `frame_rate` is the edit list's; unless given, that of the first moment's film. A moment whose file
    cannot be read is left out of clips, pictures and edit lists and named; the others are written.
    """
    if form not in FORMS:
        raise UnknownName.among("form of export", form, FORMS)
    if not moments:
        raise BadSetting("there is no moment to export, expected at least one; search for something else")
    if form == "clips":
        return write_clips(moments, target, exact=exact, overwrite=overwrite)
    if form == "sheet":
        return write_contact_sheet(moments, target, overwrite=overwrite)
    failed: list[tuple[FoundMoment, str]] = []
    if form == "edl":
        moments, failed = _readable(moments)
    text = edit_list(moments, frame_rate) if form == "edl" else TEXTS[form](moments)
    with _replacing(target, overwrite=overwrite) as partial:
        # Names that are not UTF-8 come out as the bytes that they are.
        partial.write_bytes(text.encode("utf-8", "surrogateescape"))
    return Exported(files=[target], failed=failed)


# ---------------------------------------------------------------- tables and playlists


def table(moments: Sequence[FoundMoment]) -> str:
    """CSV, with a line of COLUMNS first."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for rank, moment in enumerate(moments, 1):
        times = (f"{moment.start:.3f}", f"{moment.end:.3f}")
        lines.writerow((rank, moment.query, f"{moment.score:.6f}", *times, str(moment.path)))
    return text.getvalue()


def playlist(moments: Sequence[FoundMoment]) -> str:
    """M3U as VLC plays it, each moment from its start to its end. Other players play the whole files."""
    lines = ["#EXTM3U"]
    for moment in moments:
        title = f"{_one_line(moment.query)} ({_one_line(_shown(moment.path))})"
        lines += [
            f"#EXTINF:{max(1, round(moment.end - moment.start))},{title}",
            f"#EXTVLCOPT:start-time={moment.start:.3f}",
            f"#EXTVLCOPT:stop-time={moment.end:.3f}",
            moment.path.absolute().as_uri(),  # no name is mistaken for a remark, or ends with its line
        ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- edit lists


def edit_list(moments: Sequence[FoundMoment], frame_rate: Fraction | None = None) -> str:
    """CMX 3600: the moments one after the other, each with its place in its film and its place in the new one.

    An edit list counts frames at one rate. At 29.97 and 59.94 frames per second it drops numbers, as is usual, so that
    its times are those of a clock.
    """
    if len(moments) > MOST_EVENTS:
        raise BadSetting(f"an edit list of {len(moments):,} moments, expected at most {MOST_EVENTS}; export fewer")
    facts = [decode.facts(moment.path) for moment in moments]
    rate = frame_rate or usual_rate(facts[0].frame_rate)
    if not 1 <= rate <= FASTEST:
        raise BadSetting(f"an edit list at {float(rate):g} frames per second, expected 1 to {FASTEST}; choose another")
    lines = ["TITLE: midreel", f"FCM: {'DROP FRAME' if _drops(rate) else 'NON-DROP FRAME'}"]
    place = 0
    for number, (moment, known) in enumerate(zip(moments, facts, strict=True), 1):
        begin = round(moment.start * rate)
        length = max(1, round(moment.end * rate) - begin)
        times = (timecode(frame, rate) for frame in (begin, begin + length, place, place + length))
        lines += [
            "",
            f"{number:03d}  AX       {'B' if known.has_sound else 'V':<5} C        {' '.join(times)}",
            f"* FROM CLIP NAME: {_one_line(moment.path.name)}",
            f"* SOURCE FILE: {_one_line(str(moment.path.absolute()))}",
            f"* COMMENT: {_one_line(moment.query)} (score {moment.score:.3f})",
        ]
        place += length
    return "\n".join(lines) + "\n"


def _readable(moments: Sequence[FoundMoment]) -> tuple[list[FoundMoment], list[tuple[FoundMoment, str]]]:
    """Those of films whose facts can be read, and the others with the reason."""
    found, failed = [], []
    for moment in moments:
        try:
            decode.facts(moment.path)
        except MidreelError as error:
            failed.append((moment, str(error)))
        else:
            found.append(moment)
    if not found:
        raise BadSetting(f"of {len(moments)} moments none has a film that can be read, expected one: {failed[0][1]}")
    return found, failed


def usual_rate(rate: Fraction) -> Fraction:
    """The rate that a film was meant to have, whose frames may come a little early or late; else a whole number.

    Of slow motion a half, a quarter and so on: editors count no more than 60 frames a second.
    """
    while rate > Fraction(FASTEST * 1001, 1000):
        rate /= 2
    nearest = min(USUAL_RATES, key=lambda usual: abs(usual - rate))
    return nearest if abs(nearest - rate) < rate / 1000 else Fraction(max(1, round(rate)))


def timecode(frame: int, rate: Fraction) -> str:
    """The frame's name as editors write it, in hours, minutes, seconds and frames.

    >>> timecode(1799, Fraction(30)), timecode(1800, Fraction(30))
    ('00:00:59:29', '00:01:00:00')
    >>> timecode(1799, Fraction(30000, 1001)), timecode(1800, Fraction(30000, 1001))  # ;00 and ;01 are dropped
    ('00:00:59;29', '00:01:00;02')
    """
    base, separator = round(rate), ":"
    if _drops(rate):
        separator, dropped = ";", base // 15  # numbers in each minute but every tenth
        tens, rest = divmod(frame, 600 * base - 9 * dropped)
        # The first minute of ten keeps all its numbers.
        minutes = 0 if rest < 60 * base else 1 + (rest - 60 * base) // (60 * base - dropped)
        frame += dropped * (9 * tens + minutes)
    seconds, frames = divmod(frame, base)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{separator}{frames:02d}"


def _drops(rate: Fraction) -> bool:
    """Whether it is 29.97 or 59.94, which people may well write so."""
    return any(abs(rate - exact) < Fraction(1, 200) for exact in DROPPING)


# ---------------------------------------------------------------- clips


def write_clips(
    moments: Sequence[FoundMoment], folder: Path, *, exact: bool = False, overwrite: bool = False
) -> Exported:
    """A file for each moment, named by its rank, its film and its times."""
    paths = [folder / clip_name(rank, moment, exact=exact) for rank, moment in enumerate(moments, 1)]
    for path in paths:  # before an hour of encoding, not after it
        _expect_free(path, overwrite=overwrite)
    _make(folder)
    files, failed, early = [], [], 0.0
    for moment, path in zip(moments, paths, strict=True):
        try:
            begin = cut.write_clip(moment.path, path, moment.start, moment.end, exact=exact)
        except Unwritable:
            raise  # the next one would fare no better
        except MidreelError as error:
            failed.append((moment, str(error)))
        else:
            files.append(path)
            early = max(early, moment.start - begin)
    return Exported(files=files, failed=failed, early=early)


def clip_name(rank: int, moment: FoundMoment, *, exact: bool = False) -> str:
    """Such as '003 beach 12.5-17.0.mp4'. The rank makes it differ from all others of one export."""
    times = "-".join(f"{time:.1f}" for time in outward(moment.start, moment.end, digits=1))
    suffix = cut.clip_suffix(moment.path, exact=exact)
    return f"{rank:03d} {_plain(moment.path.stem)} {times}{suffix}"


def _plain(name: str) -> str:
    """A name that is no trouble in a shell, on any disk, or on a screen."""
    letters = unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "replace"))
    kept = re.sub(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd/\\:*?"<>|\'`$]+', "_", letters).strip(" .")
    return kept.encode()[:LONGEST_NAME].decode("utf-8", "ignore").strip(" .") or "video"


# ---------------------------------------------------------------- a picture


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which has the letters of most scripts. Matplotlib brings it."""
    from matplotlib import get_data_path

    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), size)


def write_contact_sheet(moments: Sequence[FoundMoment], path: Path, *, overwrite: bool = False) -> Exported:
    """A PNG: per moment a strip of stills from its start to its end, and what it was found by."""
    _expect_free(path, overwrite=overwrite)
    strips, failed = [], []
    for rank, moment in enumerate(moments, 1):
        try:
            strips.append((rank, moment, _stills(moment)))
        except MidreelError as error:
            failed.append((moment, str(error)))
    if not strips:
        raise BadSetting(f"none of the {len(moments)} moments can be drawn, expected at least one: {failed[0][1]}")
    sheet = Image.new("RGB", (NUM_STILLS * STILL_WIDTH + 2 * MARGIN, len(strips) * ROW + MARGIN), (250, 250, 248))
    draw, font = ImageDraw.Draw(sheet), _font(13)
    for number, (rank, moment, stills) in enumerate(strips):
        top = MARGIN + number * ROW
        times = span(moment.start, moment.end, digits=1)
        label = f"{rank}. {_one_line(moment.query)}   {times}   score {moment.score:.3f}   "
        label += _one_line(_shown(moment.path))
        draw.text((MARGIN, top), label, fill=(30, 30, 36), font=font)
        left = MARGIN
        for still in stills:
            sheet.paste(still, (left, top + LINE))
            left += still.width + 4
    with _replacing(path, overwrite=overwrite) as partial:
        sheet.save(partial, format="PNG")
    return Exported(files=[path], failed=failed)


def _stills(moment: FoundMoment) -> list[Image.Image]:
    """From the first instant to shortly before the last, which may be the first of what comes next."""
    times = np.linspace(moment.start, moment.end, NUM_STILLS, endpoint=False).tolist()
    images = (Image.fromarray(image) for _, image in decode.frames_at(moment.path, times))
    return [ImageOps.contain(image, (STILL_WIDTH - 4, STILL_HEIGHT)) for image in images]


# ---------------------------------------------------------------- writing


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() or _is_byte(letter) else " " for letter in text).split())


def _is_byte(letter: str) -> bool:
    """Of a name that is not UTF-8, as Python holds it."""
    return "\udc80" <= letter <= "\udcff"


def _shown(path: Path) -> str:
    return os.fsencode(path.name).decode("utf-8", "replace")


def _expect_free(path: Path, *, overwrite: bool) -> None:
    if path.is_dir():
        raise Unwritable(f"{path} is a folder, expected a file to be written; choose another name")
    if not overwrite and os.path.lexists(path):
        raise Unwritable(f"{path} exists, and nothing is overwritten unasked; choose another name, or --overwrite")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(f"{folder} cannot be made a folder ({error.strerror}); choose another place") from error


@contextmanager
def _replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a file to fill; when the block ends well, it takes the name `path`."""
    _expect_free(path, overwrite=overwrite)
    _make(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({error.strerror or error}), expected a folder with free space; choose another"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


TEXTS: dict[str, Callable[[Sequence[FoundMoment]], str]] = {"csv": table, "m3u": playlist, "edl": edit_list}
FORMS = ("clips", "sheet", *TEXTS)
