"""Export moments for other programs: as clips, tables, playlists, contact sheets and timelines.

Each file is written atomically, and existing files are overwritten only on request. File names may be any bytes: a
table contains them unchanged, a playlist as URLs. The names of clips have only characters that all file systems allow.
"""

import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from midreel.errors import BadSetting, MidreelError, UnknownName, Unwritable
from midreel.library.filters import outward, span
from midreel.media import cut, decode

FORMS = ("clips", "sheet", "csv", "m3u", "edl", "otio", "fcpxml")
COLUMNS = ("moment_rank", "query", "moment_score", "start", "end", "path")
MOST_EVENTS = 999  # an edit list numbers its events with three digits
FASTEST = 60  # frames per second: an edit list has two digits for the frame
DROPPING = (Fraction(30000, 1001), Fraction(60000, 1001))  # the rates with drop-frame timecode
USUAL_RATES = (Fraction(24000, 1001), *map(Fraction, (24, 25, 30, 48, 50, 60)), *DROPPING)
LONGEST_NAME = 120  # bytes of the video's name in the name of a clip; most file systems allow 255 in all

# The layout of a contact sheet, in pixels: a row for each moment, with a line of text above the stills.
NUM_STILLS, STILL_HEIGHT, STILL_WIDTH = 5, 120, 214
MARGIN, LINE = 12, 22
ROW = STILL_HEIGHT + LINE + MARGIN


@dataclass(frozen=True, kw_only=True)
class FoundMoment:
    """A moment that a search found.

    Attributes:
        path: The video file.
        start: The start in seconds.
        end: The end in seconds.
        score: How well the moment fits the query.
        query: The query.
        confidence: The probability that the video matches the query. None if it is not known.

    Raises:
        BadSetting: The moment is empty, or starts before the video.
    """

    path: Path
    start: float | int
    end: float | int
    score: float | int
    query: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < float("inf"):
            raise BadSetting(f"the moment is {self.start} to {self.end} s, expected 0 <= start < end.")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export.

    Attributes:
        files: The files that were written.
        failed: The moments of unreadable videos, with the reason. They are not in the files.
        early: The most seconds by which a clip starts before its moment.
    """

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
    """Write moments to files. Moments of unreadable videos are skipped and reported.

    Args:
        moments: The moments, best first.
        target: The folder for clips, or the file for all other forms.
        form: One of FORMS: "clips", "sheet", "csv", "m3u", "edl", "otio" or "fcpxml".
        exact: Encode clips again, so that they start and end at the exact frame. Otherwise they are copied, which is
            fast, and start at the key frame before the moment.
        overwrite: Replace existing files.
        frame_rate: Frames per second of an edit list or of FCPXML. Default: the rate of the first moment's video.

    Raises:
        BadSetting: There are no moments, no video is readable, or an edit list has too many moments.
        BadPackage: The form is "otio", and opentimelineio is not installed.
        UnknownName: There is no such form.
        Unwritable: A file exists, or cannot be written.
    """
    if form not in FORMS:
        raise UnknownName.among("form of export", form, FORMS)
    if not moments:
        raise BadSetting("there are no moments to export, expected at least one. Try another query.")
    if form == "clips":
        return write_clips(moments, target, exact=exact, overwrite=overwrite)
    if form == "sheet":
        return write_contact_sheet(moments, target, overwrite=overwrite)
    failed: list[tuple[FoundMoment, str]] = []
    if form in ("edl", "otio", "fcpxml"):
        from midreel.library import timeline  # it imports this module

        moments, failed = _readable(moments)
        if form == "otio":
            text = timeline.open_timeline(moments)
        else:
            text = (edit_list if form == "edl" else timeline.final_cut_xml)(moments, frame_rate)
    else:
        text = table(moments) if form == "csv" else playlist(moments)
    with _replacing(target, overwrite=overwrite) as partial:
        # Python decodes bytes of file names that are not UTF-8 as lone surrogates. This writes the same bytes again.
        partial.write_bytes(text.encode("utf-8", "surrogateescape"))
    return Exported(files=[target], failed=failed)


# ---------------------------------------------------------------- tables and playlists


def table(moments: Sequence[FoundMoment]) -> str:
    """Return the moments as CSV. The first line has the COLUMNS."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for rank, moment in enumerate(moments, 1):
        times = (f"{moment.start:.3f}", f"{moment.end:.3f}")
        lines.writerow((rank, moment.query, f"{moment.score:.6f}", *times, str(moment.path)))
    return text.getvalue()


def playlist(moments: Sequence[FoundMoment]) -> str:
    """Return an M3U playlist. VLC plays the moments; other players ignore the times and play the whole files."""
    lines = ["#EXTM3U"]
    for moment in moments:
        title = f"{one_line(moment.query)} ({one_line(_shown(moment.path))})"
        lines += [
            f"#EXTINF:{max(1, round(moment.end - moment.start))},{title}",
            f"#EXTVLCOPT:start-time={moment.start:.3f}",
            f"#EXTVLCOPT:stop-time={moment.end:.3f}",
            moment.path.absolute().as_uri(),  # a bare path could start with # or contain a line break
        ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- edit lists


def edit_list(moments: Sequence[FoundMoment], frame_rate: Fraction | None = None) -> str:
    """Return an edit list (CMX 3600) that plays the moments one after the other.

    Each event has its times in the source video and in the new one. All events use one frame rate. At 29.97 and 59.94
    frames per second the timecodes are drop-frame, which keeps them in step with the clock.

    Args:
        moments: The moments.
        frame_rate: Frames per second. Default: the rate of the first moment's video.

    Raises:
        BadSetting: There are more than 999 moments, or the rate is above 60.
        UnreadableVideo: A video cannot be read.
    """
    if len(moments) > MOST_EVENTS:
        raise BadSetting(
            f"there are {len(moments):,} moments, expected at most {MOST_EVENTS} in an edit list. Export fewer: --top"
        )
    facts = [decode.facts(moment.path) for moment in moments]
    rate = frame_rate or usual_rate(facts[0].frame_rate)
    if not 1 <= rate <= FASTEST:
        raise BadSetting(f"the rate is {float(rate):g} frames per second, expected 1 to {FASTEST} in an edit list.")
    lines = ["TITLE: midreel", f"FCM: {'DROP FRAME' if _drops(rate) else 'NON-DROP FRAME'}"]
    place = 0
    for number, (moment, known) in enumerate(zip(moments, facts, strict=True), 1):
        begin = round(moment.start * rate)
        length = max(1, round(moment.end * rate) - begin)
        times = (timecode(frame, rate) for frame in (begin, begin + length, place, place + length))
        lines += [
            "",
            f"{number:03d}  AX       {'B' if known.has_sound else 'V':<5} C        {' '.join(times)}",
            f"* FROM CLIP NAME: {one_line(moment.path.name)}",
            f"* SOURCE FILE: {one_line(str(moment.path.absolute()))}",
            f"* COMMENT: {one_line(moment.query)} (score {moment.score:.3f})",
        ]
        place += length
    return "\n".join(lines) + "\n"


def _readable(moments: Sequence[FoundMoment]) -> tuple[list[FoundMoment], list[tuple[FoundMoment, str]]]:
    """Split moments into those of readable videos and the others, with the reason."""
    found, failed = [], []
    for moment in moments:
        try:
            decode.facts(moment.path)
        except MidreelError as error:
            failed.append((moment, str(error)))
        else:
            found.append(moment)
    if not found:
        raise _none_readable(failed)
    return found, failed


def usual_rate(rate: Fraction) -> Fraction:
    """Return the standard rate nearest to a measured one, or else a whole number.

    Rates above 60, as of slow motion, are halved until they are at most 60: editors count no more frames per second.
    """
    while rate > Fraction(FASTEST * 1001, 1000):
        rate /= 2
    nearest = min(USUAL_RATES, key=lambda usual: abs(usual - rate))
    return nearest if abs(nearest - rate) < rate / 1000 else Fraction(max(1, round(rate)))


def timecode(frame: int, rate: Fraction) -> str:
    """Return the timecode of a frame: hours, minutes, seconds and frames.

    >>> timecode(1799, Fraction(30)), timecode(1800, Fraction(30))
    ('00:00:59:29', '00:01:00:00')

    Drop-frame timecodes, with a semicolon, skip the first numbers of most minutes:

    >>> timecode(1799, Fraction(30000, 1001)), timecode(1800, Fraction(30000, 1001))
    ('00:00:59;29', '00:01:00;02')
    """
    base, separator = round(rate), ":"
    if _drops(rate):
        # Every minute skips `dropped` numbers, except each tenth minute: `tens` blocks of ten minutes skip 9 times as
        # many, and the minutes of the last block skip once each, except its first.
        separator, dropped = ";", base // 15
        tens, rest = divmod(frame, 600 * base - 9 * dropped)
        minutes = 0 if rest < 60 * base else 1 + (rest - 60 * base) // (60 * base - dropped)
        frame += dropped * (9 * tens + minutes)
    seconds, frames = divmod(frame, base)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{separator}{frames:02d}"


def _drops(rate: Fraction) -> bool:
    """Return whether a rate has drop-frame timecodes. Rates may be rounded, such as 29.97."""
    return any(abs(rate - exact) < Fraction(1, 200) for exact in DROPPING)


# ---------------------------------------------------------------- clips


def write_clips(
    moments: Sequence[FoundMoment], folder: Path, *, exact: bool = False, overwrite: bool = False
) -> Exported:
    """Write a clip for each moment, named by rank, video and times. See `export` for the errors.

    Args:
        moments: The moments, best first.
        folder: The folder for the clips. It is created if it is missing.
        exact: Encode clips again, so that they start and end at the exact frame. Default: copy them.
        overwrite: Replace existing files.
    """
    paths = [folder / clip_name(rank, moment, exact=exact) for rank, moment in enumerate(moments, 1)]
    for path in paths:  # check all names before the first clip is encoded, which may take an hour
        expect_free(path, overwrite=overwrite)
    _make_folder(folder)
    files, failed, early = [], [], 0.0
    for moment, path in zip(moments, paths, strict=True):
        try:
            begin = cut.write_clip(moment.path, path, moment.start, moment.end, exact=exact)
        except Unwritable:
            raise  # the next clip would fail too
        except MidreelError as error:
            failed.append((moment, str(error)))
        else:
            files.append(path)
            early = max(early, moment.start - begin)
    return Exported(files=files, failed=failed, early=early)


def clip_name(rank: int, moment: FoundMoment, *, exact: bool = False) -> str:
    """Return the name of a clip, such as '003 beach 12.5-17.0.mp4'. The rank makes it unique in an export.

    Args:
        rank: The rank of the moment, from 1.
        moment: The moment.
        exact: Whether the clip is encoded again, which decides its suffix.
    """
    times = "-".join(f"{time:.1f}" for time in outward(moment.start, moment.end, digits=1))
    suffix = cut.clip_suffix(moment.path, exact=exact)
    return f"{rank:03d} {_safe_name(moment.path.stem)} {times}{suffix}"


def _safe_name(name: str) -> str:
    """Return a name without characters that shells, file systems or terminals treat specially."""
    letters = unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "replace"))
    kept = re.sub(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd/\\:*?"<>|\'`$]+', "_", letters).strip(" .")
    return kept.encode()[:LONGEST_NAME].decode("utf-8", "ignore").strip(" .") or "video"


# ---------------------------------------------------------------- contact sheets


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which covers most scripts."""
    return ImageFont.truetype(str(Path(__file__).parents[1] / "assets" / "fonts" / "DejaVuSans.ttf"), size)


def write_contact_sheet(moments: Sequence[FoundMoment], path: Path, *, overwrite: bool = False) -> Exported:
    """Write a PNG with a row for each moment: a line of text, and stills from its start to its end.

    See `export` for the errors.

    Args:
        moments: The moments, best first. Unreadable ones are left out.
        path: The file to write.
        overwrite: Replace an existing file.
    """
    expect_free(path, overwrite=overwrite)
    strips, failed = [], []
    for rank, moment in enumerate(moments, 1):
        try:
            strips.append((rank, moment, _stills(moment)))
        except MidreelError as error:
            failed.append((moment, str(error)))
    if not strips:
        raise _none_readable(failed)
    sheet = Image.new("RGB", (NUM_STILLS * STILL_WIDTH + 2 * MARGIN, len(strips) * ROW + MARGIN), (250, 250, 248))
    draw, font = ImageDraw.Draw(sheet), _font(13)
    for number, (rank, moment, stills) in enumerate(strips):
        top = MARGIN + number * ROW
        times = span(moment.start, moment.end, digits=1)
        label = f"{rank}. {one_line(moment.query)}   {times}   score {moment.score:.3f}   "
        label += one_line(_shown(moment.path))
        draw.text((MARGIN, top), label, fill=(30, 30, 36), font=font)
        left = MARGIN
        for still in stills:
            sheet.paste(still, (left, top + LINE))
            left += still.width + 4
    with _replacing(path, overwrite=overwrite) as partial:
        sheet.save(partial, format="PNG")
    return Exported(files=[path], failed=failed)


def _stills(moment: FoundMoment) -> list[Image.Image]:
    """Return evenly spaced frames of a moment. The frame at its end is left out: it may belong to the next shot."""
    times = np.linspace(moment.start, moment.end, NUM_STILLS, endpoint=False).tolist()
    images = (Image.fromarray(image) for _, image in decode.frames_at(moment.path, times))
    return [ImageOps.contain(image, (STILL_WIDTH - 4, STILL_HEIGHT)) for image in images]


# ---------------------------------------------------------------- text and files


def _none_readable(failed: Sequence[tuple[FoundMoment, str]]) -> BadSetting:
    return BadSetting(f"none of the {len(failed)} moments has a readable video. The first error: {failed[0][1]}")


def one_line(text: str) -> str:
    """Return text with spaces for line breaks and control characters."""
    return " ".join("".join(letter if letter.isprintable() or _is_byte(letter) else " " for letter in text).split())


def _is_byte(letter: str) -> bool:
    """Return whether a character is a lone surrogate, which stands for a byte that is not UTF-8."""
    return "\udc80" <= letter <= "\udcff"


def _shown(path: Path) -> str:
    return os.fsencode(path.name).decode("utf-8", "replace")


def expect_free(path: Path, *, overwrite: bool) -> None:
    """Raise Unwritable if a path is a folder, or is a file that may not be overwritten."""
    if path.is_dir():
        raise Unwritable(f"{path} is a folder, expected a file. Choose another name.")
    if not overwrite and os.path.lexists(path):
        raise Unwritable(f"{path} exists. Choose another name, or overwrite it: --overwrite")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(f"the folder {folder} cannot be created ({error.strerror}). Choose another.") from error


@contextmanager
def _replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path. Rename it to `path` when the block ends without an error, or else delete it."""
    expect_free(path, overwrite=overwrite)
    _make_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({error.strerror or error}). Free disk space, or choose another folder."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
