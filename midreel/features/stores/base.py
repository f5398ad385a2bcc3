"""What a feature store, published files and joined parts have in common."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from midreel.features.backbones.base import Fingerprint
from midreel.types import TextFeatures, VideoFeatures


@runtime_checkable
class Features(Protocol):
    """Features of one fingerprint by id, to be read. Ids may be spelt in more ways than they are listed."""

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> Fingerprint: ...

    def video_ids(self) -> list[str]: ...

    def text_ids(self) -> list[str]: ...

    def has_video(self, video_id: str) -> bool: ...

    def has_text(self, text_id: str) -> bool: ...

    def video(self, video_id: str) -> VideoFeatures: ...

    def text(self, text_id: str) -> TextFeatures: ...

    def text_origin(self, text_id: str) -> int:
        """Of which sentence, as `origins` has it; UNKNOWN, if nobody said."""

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Tells whether the features of these are the same as before, without reading them all."""

    def close(self) -> None: ...
