"""The kinds of features that papers report results on: their widths on each dataset, and their number of words.

>>> KINDS["i3d-roberta"].widths("tvr")
Widths(video=3072, text=768)
>>> find_kind("tvr", 768, 768)
'clip-l14'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from midreel.errors import BadSetting, UnknownName


class Widths(NamedTuple):
    """The widths of the vectors of frames and of words."""

    video: int
    text: int


@dataclass(frozen=True, kw_only=True)
class FeatureKind:
    """A kind of features.

    Attributes:
        about: The backbones, for people.
        max_words: The largest number of words of a query, with the tokens at its start and end.
        teacher_width: The width of CLIP's own vectors, for methods that learn from CLIP. Features without CLIP are
            used with the vectors of CLIP ViT-B/32.
        by_dataset: The widths on each dataset. "" stands for all datasets that are not listed.
        sentences: Whether a sentence has a vector of its own, in a joint space with frames. Otherwise it is the last
            word.
    """

    about: str
    max_words: int
    teacher_width: int
    by_dataset: Mapping[str, Widths]
    sentences: bool = True

    def widths(self, dataset: str) -> Widths | None:
        """Return the widths on a dataset, or None if there are no such features of it."""
        return self.by_dataset.get(dataset, self.by_dataset.get(""))


KINDS: Mapping[str, FeatureKind] = {
    "i3d-roberta": FeatureKind(
        about="I3D frames (TVR: with ResNet-152) and RoBERTa words, which most papers use",
        max_words=30,
        teacher_width=512,
        by_dataset={"tvr": Widths(3072, 768), "activitynet": Widths(1024, 1024), "charades": Widths(1024, 1024)},
        sentences=False,
    ),
    "clip-b32": FeatureKind(about="CLIP ViT-B/32", max_words=77, teacher_width=512, by_dataset={"": Widths(512, 512)}),
    "clip-l14": FeatureKind(about="CLIP ViT-L/14", max_words=77, teacher_width=768, by_dataset={"": Widths(768, 768)}),
    "slowfast-clip-b": FeatureKind(
        about="SlowFast and CLIP ViT-B frames, CLIP words",
        max_words=77,
        teacher_width=512,
        by_dataset={"": Widths(2816, 512)},
    ),
    "tiny-clip": FeatureKind(
        about="the CLIP that comes with midreel", max_words=40, teacher_width=128, by_dataset={"": Widths(128, 128)}
    ),
}
"""All kinds by name."""


def find_kind(dataset: str, video_width: int | None, text_width: int | None) -> str | None:
    """Return the kind of features with these widths, or None.

    Args:
        dataset: The name of the dataset, or of its recipe.
        video_width: The width of the vector of a frame.
        text_width: The width of the vector of a word.
    """
    found = (name for name, kind in KINDS.items() if kind.widths(dataset) == (video_width, text_width))
    return next(found, None)


def widths_of(kind: str, dataset: str) -> Widths:
    """Return the widths of a kind of features on a dataset.

    Raises:
        UnknownName: There is no such kind.
        BadSetting: There are no such features of this dataset.
    """
    if kind not in KINDS:
        raise UnknownName.among("kind of features", kind, KINDS)
    widths = KINDS[kind].widths(dataset)
    if widths is None:
        known = ", ".join(KINDS[kind].by_dataset)
        raise BadSetting(
            f"features is {kind}, which {dataset} does not have, expected one of these datasets: {known}. "
            f"Choose other features, such as clip-l14."
        )
    return widths
