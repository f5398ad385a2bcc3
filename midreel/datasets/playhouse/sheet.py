"""The contact sheet: an overview image of some videos."""

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from midreel.datasets.playhouse import art
from midreel.datasets.playhouse.scenes import PlayhouseVideo, render

_CELL, _BAR, _LINE, _MARGIN = (128, 96), 20, 22, 12  # pixels: a frame, the bar below it, a line of text, the border
_DARK, _GREY = (30, 30, 36), (120, 120, 128)


def contact_sheet(videos: Sequence[PlayhouseVideo], path: Path, every: float | int = 1.5, columns: int = 14) -> None:
    """Write an overview image: for each video a strip of frames, a colour bar for each event, and the sentences.

    Args:
        videos: The videos to show.
        path: The image file.
        every: Seconds between two frames.
        columns: The number of frames in a row.
    """
    strips = [[k * every for k in range(math.ceil(video.duration / every))] for video in videos]
    strip_heights = [math.ceil(len(times) / columns) * (_CELL[1] + _BAR) for times in strips]
    heights = [
        _MARGIN + _LINE + strip_height + (len(video.queries) + 1) * _LINE
        for video, strip_height in zip(videos, strip_heights, strict=True)
    ]
    sheet = Image.new("RGB", (columns * _CELL[0] + 2 * _MARGIN, sum(heights) + _MARGIN), art.PAPER)
    draw = ImageDraw.Draw(sheet)
    top = 0
    for video, times, strip_height, height in zip(videos, strips, strip_heights, heights, strict=True):
        y = top + _MARGIN
        title = f"{video.id}   {video.duration:g} s"
        draw.text((_MARGIN, y), title, fill=_DARK, font=ImageFont.load_default(15))
        _draw_strip(sheet, video, times, y + _LINE, columns)
        _draw_sentences(draw, video, y + _LINE + strip_height)
        top += height
    sheet.save(path)


def _draw_strip(sheet: Image.Image, video: PlayhouseVideo, times: Sequence[float | int], y: int, columns: int) -> None:
    """Draw frames of a video from the height `y` down, with their times and the colours of their events."""
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(11)
    colours = list(art.COLOURS.values())
    width, height = _CELL
    for number, time in enumerate(times):
        left, top = _MARGIN + number % columns * width, y + number // columns * (height + _BAR)
        sheet.paste(Image.fromarray(render(video, time, (width - 2, height))), (left, top))
        _, event = video.at(time)
        if event is not None:
            bar = [left, top + height, left + width - 1, top + height + 4]
            draw.rectangle(bar, fill=colours[video.events.index(event) % len(colours)])
        draw.text((left + 2, top + height + 6), f"{time:g} s", fill=_GREY, font=font)


def _draw_sentences(draw: ImageDraw.ImageDraw, video: PlayhouseVideo, y: int) -> None:
    """Write the sentences of a video from the height `y` down, and mark the events without a sentence."""
    font = ImageFont.load_default(15)
    colours = list(art.COLOURS.values())

    def mark(left: int, event_number: int) -> None:
        draw.rectangle([left, y + 3, left + 12, y + 15], fill=colours[event_number % len(colours)])

    for query, event_number in zip(video.queries, video.event_of_query, strict=True):
        mark(_MARGIN, event_number)
        times = ", ".join(f"{moment.start:g} - {moment.end:g}" for moment in query.moments)
        sentence = f"{times} s   {query.text}"
        draw.text((_MARGIN + 20, y), sentence, fill=_DARK, font=font)
        y += _LINE
    undescribed = [number for number in range(len(video.events)) if number not in video.event_of_query]
    for place, event_number in enumerate(undescribed):
        mark(_MARGIN + 16 * place, event_number)
    if undescribed:
        draw.text((_MARGIN + 16 * len(undescribed) + 4, y), "not described", fill=_GREY, font=font)
