"""The protocol that feature stores, published features and joined parts implement."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from midreel.features.backbones.base import Fingerprint
from midreel.types import TextFeatures, VideoFeatures


@runtime_checkable
class Features(Protocol):
    """Features of videos and texts with one fingerprint, to be read by id. Arrays are numpy's, in float32.

    An implementation may accept more spellings of an id than it lists.
    """

    @property
    def path(self) -> Path:
        """The file or folder of the features."""

    @property
    def fingerprint(self) -> Fingerprint:
        """The backbone and the settings that made the features."""

    def video_ids(self) -> list[str]:
        """Return the ids of the videos."""

    def text_ids(self) -> list[str]:
        """Return the ids of the texts. The list is empty if the backbone does not encode texts."""

    def has_video(self, video_id: str) -> bool:
        """Return whether there are features of a video."""

    def has_text(self, text_id: str) -> bool:
        """Return whether there are features of a text."""

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video. Raise MissingFeatures if there are none."""

    def text(self, text_id: str) -> TextFeatures:
        """Return the features of a text. Raise MissingFeatures if there are none."""

    def text_origin(self, text_id: str) -> int:
        """Return the origin of a text: its hash (see `origins.of_text`), or UNKNOWN."""

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return a hash of the features with these ids, without reading all of them."""

    def close(self) -> None:
        """Close the files. The next use opens them again."""
