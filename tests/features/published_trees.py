"""Miniature releases: feature files of every layout, with the published names, keys and widths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from midreel.features.stores.published import LAYOUTS

Matrix = NDArray[np.floating]

VIDEO_IDS = {
    "tvr": ("castle_s01e02_seg02_clip_03", "house_s03e11_seg01_clip_00", "met_s06e22_seg02_clip_17"),
    "activitynet": ("v_AbCdEfGhIjK", "v_0123456789_", "v_v_looksLike"),
    "charades": ("AB1CD", "0A8CF", "ZZZZ9"),
    "qvhighlight": ("aBc_dEfGh12", "-q_9-0_8x7y", "NUsG9BgSes0"),
}
WIDTHS = {  # of frames and words
    "i3d_resnet": (3072, 768),
    "i3d": (1024, 1024),
    "i3d_rgb_lgi": (1024, 1024),
    "clip_b32": (512, 512),
    "clip_l14": (768, 768),
    "slowfast_clip": (2816, 512),
}
EVERY_LAYOUT = [(dataset, features) for dataset, layouts in LAYOUTS.items() for features in layouts]


@dataclass(frozen=True, kw_only=True)
class Release:
    """The written features, by the ids in a caption file."""

    folder: Path  # of the dataset
    videos: Mapping[str, Matrix]
    texts: Mapping[str, Matrix]


def write_release(
    root: Path, dataset: str, features: str, *, seed: int = 0, dtype: str = "<f4", keep_enc: bool = False
) -> Release:
    """Write the files of one layout to ROOT/dataset. With `keep_enc`, texts of B/32 have their full id as key."""
    random = np.random.default_rng(seed)
    layout, (width, word_width) = LAYOUTS[dataset][features], WIDTHS[features]
    num_words = (1, 1) if features == "clip_b32" else (3, 9)
    videos = {name: _matrix(random, (2, 9), width, dtype) for name in VIDEO_IDS[dataset]}
    texts = {f"{name}#enc#{n}": _matrix(random, num_words, word_width, dtype) for name in videos for n in range(2)}
    release = Release(folder=root / dataset, videos=videos, texts=texts)
    if features.startswith("i3d"):
        write_bigfile(release.folder / layout.videos, videos)
    else:
        # Only the ActivityNet file of MSC has keys without the prefix.
        bare = (dataset, features) == ("activitynet", "clip_l14")
        write_flat(release.folder / layout.videos, {name[2:] if bare else name: rows for name, rows in videos.items()})
    short = features == "clip_b32" and not keep_enc
    write_flat(
        release.folder / layout.texts,
        {name.replace("#enc#", "#") if short else name: rows for name, rows in texts.items()},
    )
    return release


def write_bigfile(folder: Path, videos: Mapping[str, Matrix], order: Sequence[int] | None = None) -> None:
    """Write a BigFile. `order` permutes the rows on disk."""
    folder.mkdir(parents=True)
    frames = {name: [f"{name}_{k}" for k in range(len(rows))] for name, rows in videos.items()}
    ids = [frame for names in frames.values() for frame in names]
    matrix = np.concatenate(list(videos.values())).astype("<f4")
    order = range(len(ids)) if order is None else order
    matrix[list(order)].tofile(folder / "feature.bin")
    (folder / "id.txt").write_text(" ".join(ids[row] for row in order), encoding="latin-1")
    (folder / "shape.txt").write_text(f"{len(matrix)} {matrix.shape[1]}\n")
    (folder / "video2frames.txt").write_text(str(frames), encoding="utf-8")


def write_flat(path: Path, entries: Mapping[str, Matrix]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, value in entries.items():
            file[key] = value


def _matrix(random: np.random.Generator, lengths: tuple[int, int], width: int, dtype: str) -> Matrix:
    return random.standard_normal((random.integers(*lengths, endpoint=True), width)).astype(dtype)
