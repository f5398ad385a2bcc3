"""Generate the playhouse: a dataset of small untrimmed videos with sentences about their parts, from a seed.

A video is a sequence of events. Most events have a sentence, some have none. The same kinds of events occur in other
videos. So the sentences of one video differ, and sentences of different videos are similar. Many actions cannot be
recognised in a single frame, because a rising thing looks like a falling one. So a model has to use time.

There are three kinds of videos: `small`, `repeated` (small, and one event happens again) and `large`.

The description of a video is a pure function of kind, seed, split and index. No file is needed, and a file contains the
frames that `render` returns.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from midreel.datasets.playhouse import large, small
from midreel.datasets.playhouse.scenes import PlayhouseVideo
from midreel.datasets.playhouse.troupe import EVERYTHING, Troupe, TroupeSize, draw_troupe
from midreel.errors import BadSetting, UnknownName
from midreel.types import Split

# "stills" has single frames, to train a backbone.
SPLITS = ("train", "val", "test", "stills")

_Maker = Callable[[np.random.Generator, str, Troupe], PlayhouseVideo]
_MAKERS: dict[str, _Maker] = {"small": small.make, "repeated": small.make_repeated, "large": large.make}
_SIZES: dict[str, TroupeSize] = {"small": small.SIZE, "repeated": small.SIZE, "large": large.SIZE}
# Independent random numbers for each kind. 1 is for stills. Small and repeated videos share a troupe.
_STREAMS: dict[str, tuple[int, ...]] = {"small": (), "repeated": (2,), "large": (3,)}
_TROUPES: dict[str, tuple[int, ...]] = {"small": (), "repeated": (), "large": (3,)}

KINDS = tuple(_MAKERS)
DEFAULT_KIND = "small"  # it is not part of the id of a video
_ID = re.compile(
    rf"playhouse-((?P<kind>{'|'.join(KINDS[1:])})-)?(?P<split>{'|'.join(SPLITS)})-(?P<index>[0-9]{{5}}|[1-9][0-9]{{5,}})"
)


def make_troupe(seed: int, split: str = "train", *, kind: str = DEFAULT_KIND) -> Troupe:
    """Return the things, colours and backdrops of a split.

    A troupe is small, so that videos are similar and often differ only in their events. The splits train, val and test
    of a seed have the same troupe. The split stills has all things, colours and backdrops.

    Args:
        seed: The seed of the dataset.
        split: The name of the split.
        kind: The kind of videos, a name of KINDS.
    """
    if split == "stills":
        return EVERYTHING
    return draw_troupe(np.random.default_rng([seed, len(SPLITS), *_TROUPES[_known(kind)]]), _SIZES[kind])


def make_video(seed: int, index: int, split: str = "train", *, kind: str = DEFAULT_KIND) -> PlayhouseVideo:
    """Return one video of a split. It does not depend on the number of videos in the split.

    Args:
        seed: The seed of the dataset.
        index: The number of the video in the split, from 0.
        split: The name of the split.
        kind: The kind of video, a name of KINDS.

    Raises:
        UnknownName: There is no such split or kind.
        BadSetting: The seed or the index is negative.

    >>> make_video(seed=0, index=0).id
    'playhouse-train-00000'
    >>> [len(query.moments) for query in make_video(seed=0, index=0, kind="repeated").queries]
    [1, 1, 2]
    """
    rng = generator(seed, index, split, *_STREAMS[_known(kind)])
    prefix = "playhouse" if kind == DEFAULT_KIND else f"playhouse-{kind}"
    return _MAKERS[kind](rng, f"{prefix}-{split}-{index:05d}", make_troupe(seed, split, kind=kind))


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise UnknownName.among("kind of playhouse", kind, KINDS)
    return kind


def has_id(video_id: str) -> bool:
    """Return whether a playhouse video can have this id."""
    return _ID.fullmatch(video_id) is not None


def find_video(seed: int, video_id: str) -> PlayhouseVideo:
    """Return the video with this id.

    Raises:
        UnknownName: No playhouse video has this id.
    """
    found = _ID.fullmatch(video_id)
    if found is None:
        raise UnknownName(f"no playhouse video {video_id!r}; expected an id such as playhouse-train-00000")
    return make_video(seed, int(found["index"]), found["split"], kind=found["kind"] or DEFAULT_KIND)


def make_split(seed: int, split: str, num_videos: int, *, kind: str = DEFAULT_KIND) -> tuple[PlayhouseVideo, ...]:
    """Return the first videos of a split.

    Args:
        seed: The seed of the dataset.
        split: The name of the split.
        num_videos: The number of videos.
        kind: The kind of videos, a name of KINDS.
    """
    return tuple(make_video(seed, index, split, kind=kind) for index in range(num_videos))


def annotations(videos: Sequence[PlayhouseVideo]) -> Split:
    """Return the videos and their queries as a split."""
    return Split(
        video_ids=tuple(video.id for video in videos),
        queries=tuple(query for video in videos for query in video.queries),
    )


def generator(seed: int, index: int, split: str, *purpose: int) -> np.random.Generator:
    """Return the random generator of a video.

    Args:
        seed: The seed of the dataset.
        index: The number of the video in the split.
        split: The name of the split.
        purpose: Numbers that make the generator independent of others of the same video.
    """
    if split not in SPLITS:
        raise UnknownName.among("playhouse split", split, SPLITS)
    if seed < 0 or index < 0:
        raise BadSetting(f"seed is {seed} and index is {index}, expected 0 or more for both.")
    return np.random.default_rng([seed, SPLITS.index(split), index, *purpose])
