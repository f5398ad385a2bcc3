"""Features whose sentences have a teacher: the same sentences in the text space of another backbone (Table 3c)."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from midreel.errors import BadSetting
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.base import Features
from midreel.types import TextFeatures, VideoFeatures


class WithTextTeacher:
    """Features, with the last word ([EOS]) of another backbone's sentences as the teacher of TCPL.

    Frames, words and fingerprint are those of the student, so a model that was trained with a teacher does not need it
    for search.

    Args:
        student: The features to train on.
        teacher: Features with the same texts. Its videos are not used.

    Raises:
        BadSetting: The teacher has no texts.
    """

    def __init__(self, student: Features, teacher: Features) -> None:
        if teacher.fingerprint.word_width is None:
            raise BadSetting(
                f"{teacher.path} ({teacher.fingerprint.backbone}) has no texts, expected those of a text encoder. "
                f"Extract it with a CLIP."
            )
        self._student, self._teacher = student, teacher

    @property
    def path(self) -> Path:
        """The file or folder of the student's features."""
        return self._student.path

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the student's features."""
        return self._student.fingerprint

    def video_ids(self) -> list[str]:
        """Return the ids of the videos."""
        return self._student.video_ids()

    def text_ids(self) -> list[str]:
        """Return the ids of the texts that both have."""
        return [text_id for text_id in self._student.text_ids() if self._teacher.has_text(text_id)]

    def has_video(self, video_id: str) -> bool:
        """Return whether there are features of a video."""
        return self._student.has_video(video_id)

    def has_text(self, text_id: str) -> bool:
        """Return whether both have features of a text."""
        return self._student.has_text(text_id) and self._teacher.has_text(text_id)

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video."""
        return self._student.video(video_id)

    def text(self, text_id: str) -> TextFeatures:
        """Return the features of a text, with its last word in the space of the teacher, scaled to length one."""
        last = np.asarray(self._teacher.text(text_id).words[-1], np.float32)
        return replace(self._student.text(text_id), teacher=last / max(float(np.linalg.norm(last)), 1e-12))

    def text_origin(self, text_id: str) -> int:
        """Return the origin of a text: its hash, or UNKNOWN."""
        return self._student.text_origin(text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return a hash of the features of these videos, and of these texts in both spaces."""
        texts = list(text_ids)
        digests = (self._student.digest(video_ids, texts), self._teacher.digest((), texts))
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def close(self) -> None:
        """Close the files. The next use opens them again."""
        self._student.close()
        self._teacher.close()

    def __repr__(self) -> str:
        return f"WithTextTeacher({self._student!r}, {self._teacher!r})"
