"""The files of the playhouse: mp4 files, annotations, and the settings from which a folder can be generated again."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from midreel.datasets import own, parsing
from midreel.datasets.playhouse.generate import DEFAULT_KIND, annotations, find_video, has_id, make_split
from midreel.datasets.playhouse.scenes import FRAME_SIZE, Frame, PlayhouseVideo, frames
from midreel.errors import BadSetting, UnknownName
from midreel.media.decode import write_video
from midreel.types import Split

FRAME_RATE = 12
DESCRIPTION = "playhouse.json"  # the settings from which a folder can be generated again
VERSION = 3  # of the generator. Raise it when the same seed gives other videos: old folders must not mix with new ones.


def write_file(video: PlayhouseVideo, path: Path, size: tuple[int, int] = FRAME_SIZE, rate: int = FRAME_RATE) -> str:
    """Write a video as an mp4 file. Return its id.

    Args:
        video: The video.
        path: The file to write.
        size: Width and height in pixels.
        rate: Frames per second.
    """
    write_video(path, (image for _, image in frames(video, rate, size)), rate)
    return video.id


def write_dataset(
    folder: Path,
    *,
    seed: int,
    num_train: int = 0,
    num_val: int = 0,
    num_test: int = 0,
    files: Sequence[str] = ("train", "val", "test"),
    kind: str = DEFAULT_KIND,
    size: tuple[int, int] = FRAME_SIZE,
    rate: int = FRAME_RATE,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Split]:
    """Write a dataset: annotations, and mp4 files of some splits. Existing files are kept.

    A split without files can be used too, because `draw_frames` draws its frames. The annotations are written last, so
    a folder with annotations is complete.

    Args:
        folder: A new folder, or a playhouse with the same settings to complete or extend.
        seed: The seed of all videos.
        num_train: The number of videos in the split train.
        num_val: The number of videos in the split val.
        num_test: The number of videos in the split test.
        files: The splits whose videos are written as mp4 files.
        kind: The kind of videos, a name of KINDS.
        size: The width and height of the files, in pixels.
        rate: The frames per second of the files.
        progress: Called with the id of each video that has a file.

    Returns:
        The splits, by name.

    Raises:
        UnknownName: There is no such kind, or `files` names an unknown split.
        BadSetting: No video is requested, or the folder contains something else.
    """
    counts = {"train": num_train, "val": num_val, "test": num_test}
    for name in files:
        if name not in counts:
            raise UnknownName.among("playhouse split", name, counts)
    if not any(counts.values()):
        raise BadSetting(
            "0 videos requested, expected at least 1 for train, val or test. Set num_train, num_val or num_test."
        )
    dataset = {name: make_split(seed, name, count, kind=kind) for name, count in counts.items() if count}
    splits = {name: annotations(of_split) for name, of_split in dataset.items()}
    _write_description(folder, {"version": VERSION, "seed": seed, "size": list(size), "rate": rate})
    _expect_no_loss(folder, splits)
    wanted = [(video, folder / f"{video.id}.mp4", size, rate) for name in files for video in dataset.get(name, ())]
    made = [video.id for video, path, *_ in wanted if path.exists()]
    for video_id in chain(made, _in_parallel(write_file, [each for each in wanted if each[0].id not in made])):
        if progress is not None:
            progress(video_id)
    own.write(folder, splits)
    return splits


def draw_frames(folder: Path, video_id: str, rate: float | int) -> tuple[Iterator[tuple[float, Frame]], float] | None:
    """Return the frames and the duration of a playhouse video that has no file; None if it is no playhouse video.

    Args:
        folder: A folder that `write_dataset` wrote.
        video_id: The id of the video.
        rate: Frames per second.

    Raises:
        BadSetting: Another version of the generator wrote the folder, or its description is damaged.
    """
    if not can_draw(folder, video_id):
        return None
    description = _read_description(folder / DESCRIPTION)
    if description["version"] != VERSION:
        raise BadSetting(
            f"{folder} has version {description['version']} of the playhouse, expected {VERSION}, which draws other "
            f"videos. Generate the dataset again in a new folder."
        )
    width, height = description["size"]
    video = find_video(description["seed"], video_id)
    return frames(video, rate, (width, height)), video.duration


def can_draw(folder: Path, video_id: str) -> bool:
    """Return whether `draw_frames` can draw a video, so that it needs no file."""
    return (folder / DESCRIPTION).is_file() and has_id(video_id)


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"seed", "size", "rate"} <= set(description):
            return {"version": 1} | description
    except (ValueError, TypeError) as error:
        raise BadSetting(f"{path} is not JSON ({error}). Delete the folder and generate it again.") from error
    raise BadSetting(
        f"{path} is {description}, expected seed, size, rate and version. Delete the folder and generate it again."
    )


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write the settings of a new folder, or check that an existing folder has the same.

    Raises:
        BadSetting: The folder has other settings, or videos or annotations that the playhouse did not write.
    """
    path = folder / DESCRIPTION
    if path.is_file():
        found = _read_description(path)
        if found != description:
            names = [name for name in found | description if found.get(name) != description.get(name)]
            others = [f"{name} {found.get(name)}, not {description.get(name)}" for name in names]
            raise BadSetting(
                f"{folder} contains a playhouse with {', '.join(others)}. Use the same settings, or another folder."
            )
        return
    if own.annotation_files(folder):
        raise BadSetting(f"{folder} contains other annotations, expected a new folder. Choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise BadSetting(f"{folder} is a file, expected a new folder. Choose another name.")
    if any(not path.name.startswith("playhouse-") for path in own.video_files(folder)):
        raise BadSetting(f"{folder} contains other videos, expected a new folder. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    parsing.write_if_changed(path, json.dumps(description) + "\n")


def _expect_no_loss(folder: Path, splits: Mapping[str, Split]) -> None:
    """Raise BadSetting if writing these splits would delete a sentence from the annotations of the folder."""
    if not own.annotation_files(folder):
        return
    known = {query for split in splits.values() for query in split.queries}
    lost = [query for split in own.read(folder).values() for query in split.queries if query not in known]
    if lost:
        raise BadSetting(
            f"{own.annotation_file(folder)} would lose {len(lost)} sentences, such as {lost[0].text!r}. Generate at "
            f"least as many videos as before, or choose another folder."
        )


def _in_parallel(function: Callable[..., str], arguments: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the results in order of completion, from one process per core. A few calls run in this process."""
    workers = min(os.cpu_count() or 1, len(arguments) // 8)
    if workers <= 1:
        yield from (function(*each) for each in arguments)
        return
    # A forked process may hang if this one has used torch's threads, so the pool spawns new processes. They ignore
    # Ctrl-C: only this process reacts to it, and waits for the running calls to finish.
    ignore_interrupts = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, ignore_interrupts) as pool:
        try:
            with _interrupts_blocked():
                futures = [pool.submit(function, *each) for each in arguments]
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. Processes that start in the block never receive it.

    A child inherits the signal mask, so it ignores Ctrl-C even before its initializer has run. Windows has no signal
    masks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
