"""Published features of the four benchmarks, read from their original files.

A dataset is a folder with the subfolders FeatureData and TextData. LAYOUTS lists the files of each release.
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
    """The files of a release, relative to the folder of the dataset, and their properties.

    Attributes:
        videos: The file or folder with the features of the videos.
        texts: The file with the features of the texts.
        widths: The widths of the vectors of frames and of words.
        joint: Whether one CLIP made both files, so that sentences and frames can be compared.
        frame_rate: The number of rows a second, if it is documented.
    """

    videos: str
    texts: str
    widths: tuple[int, int]
    joint: bool
    frame_rate: float | None = None


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
            joint=True,  # the last 512 of the 2816 numbers of a frame are from CLIP
            frame_rate=1 / 2,
        )
    },
}

_SHOWN = 10  # files in an error message


class PublishedFeatures:
    """Features of videos in a BigFile or a flat HDF5 file, and of texts in another file.

    **Times.** The files contain no times. With a `frame_rate`, row k starts at k / `frame_rate` seconds. Otherwise the
    rows divide the duration of the video evenly. If the duration is unknown too, rows are one second apart.

    **Sentences.** The vector of a sentence is the last row of the text, which is [EOS] of CLIP. The releases do not
    document whether it is projected into the joint space. If zero-shot search finds nothing (R@1 below 1 %), it is not.

    **Ids** are listed as in the files. Lookups also try ids with or without the `v_` of ActivityNet, and
    `<video>#<n>` for a text `<video>#enc#<n>`.

    Args:
        videos: The file or folder with the features of the videos.
        texts: The file with the features of the texts, if there is one.
        joint: Whether one CLIP made both files. Otherwise zero-shot search is not possible.
        frame_rate: The number of rows a second, if it is known.
        durations: The durations of the videos in seconds, by id.
        widths: The expected widths of the vectors of frames and words, for `misfits`.
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
        """The file, or the folder that contains both files."""
        return Path(os.path.commonpath([matrices.path.absolute() for matrices in self._parts]))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the files. Its weights are a hash of samples of their content."""
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
        """Return the ids of the videos, as in the file."""
        return self._videos.ids()

    def text_ids(self) -> list[str]:
        """Return the ids of the texts, as in the file."""
        return [] if self._texts is None else self._texts.ids()

    def has_video(self, video_id: str) -> bool:
        """Return whether there are features of a video, in any spelling of its id."""
        return any(spelling in self._videos for spelling in _video_spellings(video_id))

    def has_text(self, text_id: str) -> bool:
        """Return whether there are features of a text, in any spelling of its id."""
        return self._texts is not None and any(spelling in self._texts for spelling in _text_spellings(text_id))

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video.

        Raises:
            BadFeatures: If the features or the duration of the video are not valid.
            BadStore: If the file cannot be read.
            MissingFeatures: If the file does not have the video.
        """
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
        """Return the features of a text.

        Raises:
            BadFeatures: If the features are not valid.
            BadStore: If the file cannot be read.
            MissingFeatures: If the file does not have the text, or there is no file of texts.
        """
        if self._texts is None:
            raise MissingFeatures(
                f"{self.path} was opened without a file of texts. Pass it: PublishedFeatures(…, texts=…)."
            )
        words = self._texts.read(*_text_spellings(text_id))
        return TextFeatures(words=words, sentence=words[-1])

    def text_origin(self, text_id: str) -> int:
        """Return UNKNOWN: the files do not contain the texts."""
        return UNKNOWN

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return the hash of the files, whatever the ids: published files do not change."""
        return self.fingerprint.weights

    def misfits(self) -> list[str]:
        """Return a message for each file whose vectors do not have the published width."""
        return [
            f"the vectors in {matrices.path} have the width {matrices.width}, expected {width} as published. "
            f"Download it again."
            for matrices, width in zip(self._parts, self._widths or (), strict=False)
            if matrices.width != width
        ]

    def close(self) -> None:
        """Close the files. The next use opens them again."""
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
            raise BadFeatures(f"the duration of video {video_id!r} is {duration} s, expected a finite number above 0.")
        return duration


def find_published(
    root: str | Path,
    dataset: str,
    *,
    features: str | None = None,
    durations: Mapping[str, float] | None = None,
) -> PublishedFeatures:
    """Find and open the published features of a dataset.

    Args:
        root: The folder of the dataset, or a folder that contains it under the name of the dataset.
        dataset: tvr, activitynet, charades or qvhighlight.
        features: The name of the release in LAYOUTS. Needed if the folder contains several.
        durations: The durations of the videos in seconds, by id.

    Raises:
        BadSetting: If the folder contains several releases and `features` is None.
        MissingFeatures: If the folder contains no release.
        UnknownName: If there is no such dataset or release.
    """
    if dataset not in LAYOUTS:
        raise UnknownName.among("dataset", dataset, LAYOUTS)
    layouts = LAYOUTS[dataset]
    if features is not None and features not in layouts:
        raise UnknownName.among(f"features of {dataset}", features, layouts)
    places = [Path(root) / dataset, Path(root)]
    wanted = layouts if features is None else {features: layouts[features]}
    found = {name: place for place in reversed(places) for name, layout in wanted.items() if _exists(place, layout)}
    if not found:
        raise MissingFeatures(_not_found(places, dataset, wanted.values()))
    if len(found) > 1:
        raise BadSetting(
            f"{root} has {len(found)} kinds of features of {dataset}, expected one. Pass features= (--features), one "
            f"of: {', '.join(name for name in layouts if name in found)}"
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


def _exists(place: Path, layout: Layout) -> bool:
    return (place / layout.videos).exists() and (place / layout.texts).exists()


def _not_found(places: Sequence[Path], dataset: str, layouts: Iterable[Layout]) -> str:
    wanted = ", or ".join(f"{layout.videos} with {layout.texts}" for layout in layouts)
    there = [
        str(path) for place in places for path in sorted((*place.glob("FeatureData/*"), *place.glob("TextData/*")))
    ]
    shown = [*there[:_SHOWN], *(["…"] if len(there) > _SHOWN else [])]
    return (
        f"no features of {dataset} in {' or '.join(map(str, places))}, expected {wanted}. Found "
        f"{', '.join(shown) or 'neither FeatureData nor TextData'}. Download the missing files, or pass their folder."
    )


def _video_spellings(video_id: str) -> tuple[str, str]:
    return video_id, video_id.removeprefix("v_") if video_id.startswith("v_") else f"v_{video_id}"


def _text_spellings(text_id: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((text_id, "#".join(text_id.rsplit("#enc#", 1)))))
