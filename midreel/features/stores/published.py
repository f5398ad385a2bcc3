"""The features that were published for the four benchmarks, read where they lie and as they are.

A dataset is a folder with FeatureData and TextData. LAYOUTS lists the files that the releases put there.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from midreel.errors import BadFeatures, BadSetting, MissingFeatures, UnknownName
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.bigfile import BigFile
from midreel.features.stores.flat_hdf5 import FlatHDF5
from midreel.features.stores.hdf5_log import UNKNOWN
from midreel.features.stores.matrices import Matrices
from midreel.types import TextFeatures, VideoFeatures


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a release keeps the features of a dataset, below its folder, and what is known of them."""

    videos: str
    texts: str
    widths: tuple[int, int]  # of frames and words
    joint: bool  # whether one CLIP made both, so that sentences and frames can be compared
    frame_rate: float | None = None  # where it is documented


def _layouts(dataset: str, frames: str, widths: tuple[int, int], frame_rate: float | None = None) -> dict[str, Layout]:
    return {
        frames: Layout(
            videos=f"FeatureData/{frames}",
            texts=f"TextData/roberta_{dataset}_query_feat.hdf5",
            widths=widths,
            joint=False,
            frame_rate=frame_rate,
        ),
        "clip_b32": Layout(
            videos=f"FeatureData/new_clip_vit_32_{dataset}_vid_features.hdf5",
            texts=f"TextData/clip_ViT_B_32_{dataset}_query_feat.hdf5",
            widths=(512, 512),
            joint=True,
        ),
        "clip_l14": Layout(
            videos=f"FeatureData/{dataset}_clip_L14.h5",
            texts=f"TextData/{dataset}_clip_L14.h5",
            widths=(768, 768),
            joint=True,
        ),
    }


LAYOUTS = {
    "tvr": _layouts("tvr", "i3d_resnet", (3072, 768), frame_rate=1 / 1.5),
    "activitynet": _layouts("activitynet", "i3d", (1024, 1024)),
    "charades": _layouts("charades", "i3d_rgb_lgi", (1024, 1024)),
    "qvhighlight": {
        "slowfast_clip": Layout(
            videos="FeatureData/qvhighlight_slowfast_clip.h5",
            texts="TextData/qvhighlight_slowfast_clip_text.h5",
            widths=(2816, 512),
            joint=True,  # of a frame's 2816 numbers the last 512 are CLIP's
            frame_rate=1 / 2,
        )
    },
}

_SHOWN = 10  # files that an error names


class PublishedFeatures:
    """Features of videos in a BigFile or a flat HDF5 file, and of texts in another file.

    The files say nothing about time. Row k is taken to begin at k / `frame_rate` where that is known; else the rows
    share the video's duration evenly, where `durations` knows it; else they are taken to be a second apart.

    The sentence is the last row of a text: CLIP's [EOS]. Whether the release applied CLIP's projection to it is not
    documented; if zero-shot search finds nothing (R@1 below 1 %), it did not. Where CLIP did not make both files,
    `joint` is False, and zero-shot search is refused.

    Ids are listed as the files spell them. They are found also with or without ActivityNet's leading `v_`, and texts
    also as `<video>#<n>` where they are asked for as `<video>#enc#<n>`.

    `widths` are those that the vectors of frames and words should have, where that is known; any are read.
    """

    def __init__(
        self,
        videos: str | Path,
        texts: str | Path | None = None,
        *,
        joint: bool = False,
        frame_rate: float | None = None,
        durations: Mapping[str, float] | None = None,
        widths: tuple[int, int] | None = None,
    ) -> None:
        self._widths = widths
        self._videos = _matrices(Path(videos))
        self._texts = None if texts is None else _matrices(Path(texts))
        self._joint, self._frame_rate, self._durations = joint, frame_rate, durations or {}

    @property
    def path(self) -> Path:
        """The folder that holds all of it."""
        return Path(os.path.commonpath([matrices.path.absolute() for matrices in self._parts]))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        digests = [matrices.digest() for matrices in self._parts]
        return Fingerprint(
            backbone="published " + " + ".join(dict.fromkeys(matrices.path.name for matrices in self._parts)),
            weights=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
            width=self._videos.width,
            word_width=None if self._texts is None else self._texts.width,
            sentence_width=None if self._texts is None else self._texts.width,
            joint=self._joint,
            frame_rate=self._frame_rate,
            dtype=self._videos.dtype,
        )

    def video_ids(self) -> list[str]:
        return self._videos.ids()

    def text_ids(self) -> list[str]:
        return [] if self._texts is None else self._texts.ids()

    def has_video(self, video_id: str) -> bool:
        return any(spelling in self._videos for spelling in _video_spellings(video_id))

    def has_text(self, text_id: str) -> bool:
        return self._texts is not None and any(spelling in self._texts for spelling in _text_spellings(text_id))

    def video(self, video_id: str) -> VideoFeatures:
        frames = self._videos.read(*_video_spellings(video_id))
        rows = np.arange(len(frames), dtype=np.float64)
        duration = self._duration(video_id)
        if self._frame_rate is not None:
            times = rows / self._frame_rate
            end = len(frames) / self._frame_rate
        else:
            end = len(frames) if duration is None else duration
            times = rows * (end / len(frames))
        return VideoFeatures(
            frames=frames, times=times.astype(np.float32), duration=float(end if duration is None else duration)
        )

    def text(self, text_id: str) -> TextFeatures:
        if self._texts is None:
            raise MissingFeatures(
                f"{self.path} was opened without texts, expected a file of them; name it: PublishedFeatures(…, texts=…)"
            )
        words = self._texts.read(*_text_spellings(text_id))
        return TextFeatures(words=words, sentence=words[-1])

    def text_origin(self, text_id: str) -> int:
        return UNKNOWN

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Of the files: whatever is asked for is in them."""
        return self.fingerprint.weights

    def misfits(self) -> list[str]:
        """What there is to say of files whose vectors have another width than they should."""
        return [
            f"the vectors in {matrices.path} are {matrices.width} wide, expected {width}, as they were published; "
            f"fetch the file again"
            for matrices, width in zip(self._parts, self._widths or (), strict=False)
            if matrices.width != width
        ]

    def close(self) -> None:
        for matrices in self._parts:
            matrices.close()

    def __repr__(self) -> str:
        return f"PublishedFeatures({', '.join(repr(str(matrices.path)) for matrices in self._parts)})"

    @property
    def _parts(self) -> list[Matrices]:
        return [self._videos] if self._texts is None else [self._videos, self._texts]

    def _duration(self, video_id: str) -> float | None:
        known = (self._durations[key] for key in _video_spellings(video_id) if key in self._durations)
        duration = next(known, None)
        if duration is not None and not 0 < duration < float("inf"):
            raise BadFeatures(f"the duration of video {video_id!r} is {duration} s, expected more than 0; correct it")
        return duration


def find_published(
    root: str | Path,
    dataset: str,
    *,
    features: str | None = None,
    durations: Mapping[str, float] | None = None,
) -> PublishedFeatures:
    """The features of a dataset (tvr, activitynet, charades, qvhighlight) in `root`, or in its folder of that name.

    `features` chooses, by its name in LAYOUTS, where several releases lie there.
    """
    if dataset not in LAYOUTS:
        raise UnknownName.among("dataset", dataset, LAYOUTS)
    layouts = LAYOUTS[dataset]
    if features is not None and features not in layouts:
        raise UnknownName.among(f"features of {dataset}", features, layouts)
    places = [Path(root) / dataset, Path(root)]
    wanted = layouts if features is None else {features: layouts[features]}
    found = {name: place for place in reversed(places) for name, layout in wanted.items() if _is_whole(place, layout)}
    if not found:
        raise MissingFeatures(_not_found(places, dataset, wanted.values()))
    if len(found) > 1:
        raise BadSetting(
            f"{root} holds {len(found)} kinds of features of {dataset}, expected a choice; pass features= "
            f"(--features), one of: {', '.join(name for name in layouts if name in found)}"
        )
    ((name, place),) = found.items()
    layout = layouts[name]
    return PublishedFeatures(
        place / layout.videos,
        place / layout.texts,
        joint=layout.joint,
        frame_rate=layout.frame_rate,
        durations=durations,
        widths=layout.widths,
    )


def _matrices(path: Path) -> Matrices:
    return BigFile(path) if path.is_dir() else FlatHDF5(path)


def _is_whole(place: Path, layout: Layout) -> bool:
    return (place / layout.videos).exists() and (place / layout.texts).exists()


def _not_found(places: Sequence[Path], dataset: str, layouts: Iterable[Layout]) -> str:
    wanted = ", or ".join(f"{layout.videos} with {layout.texts}" for layout in layouts)
    there = [
        str(path) for place in places for path in sorted((*place.glob("FeatureData/*"), *place.glob("TextData/*")))
    ]
    shown = [*there[:_SHOWN], *(["…"] if len(there) > _SHOWN else [])]
    return (
        f"no features of {dataset} in {' or '.join(map(str, places))}, expected {wanted}; found "
        f"{', '.join(shown) or 'neither FeatureData nor TextData'}: download what is missing, or name the folder that "
        f"holds it"
    )


def _video_spellings(video_id: str) -> tuple[str, str]:
    return video_id, video_id.removeprefix("v_") if video_id.startswith("v_") else f"v_{video_id}"


def _text_spellings(text_id: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((text_id, "#".join(text_id.rsplit("#enc#", 1)))))
