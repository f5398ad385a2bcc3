"""What a library has learned from feedback: a correction of the vectors of queries.

An adaptation remembers sentences that got feedback, each with a direction for every branch of the model. A query that
is like such a sentence is moved in its direction:

    q' = q + |q| sum_i k_i m_i        k_i = max(0, (cos(s, s_i) - r_i) / (1 - r_i))

q is the vector of the query in a branch, s its sentence vector from the backbone. Sentence i has the vector s_i, the
direction m_i and the reach r_i, a cosine. Before learning, every m_i is zero, so every score is that of the model.
After learning, a query beyond the reach of all sentences has exactly the vector, and the hits, that it had before.

Only queries change. The tokens of videos, images as queries and the curves' formula stay those of the model.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from midreel.errors import BadLibrary
from midreel.types import TextFeatures, Tokens

if TYPE_CHECKING:
    from midreel.library.encoder import Encoder

NAME = "adaptation.npz"
_KEYS, _REACH, _MOVES = "sentences", "reach", "moves."


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """A correction of the vectors of queries.

    Attributes:
        sentences: The sentence vectors, of length one.
        reach: The cosine from which on another sentence is like each of these. Below 1.
        moves: The direction of each sentence, by branch.

    Raises:
        BadLibrary: The arrays do not fit together. The file may be damaged.
    """

    sentences: Float[np.ndarray, "N E"]
    reach: Float[np.ndarray, " N"]
    moves: Mapping[str, Float[np.ndarray, "N D"]]

    def __post_init__(self) -> None:
        arrays = [self.sentences, self.reach[:, None] if self.reach.ndim == 1 else self.reach, *self.moves.values()]
        fits = all(each.ndim == 2 and len(each) == len(self.sentences) for each in arrays)
        if not (fits and self.moves and all(np.isfinite(each).all() for each in arrays) and (self.reach < 1).all()):
            raise BadLibrary(
                f"an adaptation has arrays of shapes {[each.shape for each in arrays]}, expected a row of finite "
                f"numbers for each sentence. Learn again: midreel adapt LIBRARY"
            )

    def likeness(self, sentences: Float[np.ndarray, "Q E"]) -> Float[np.ndarray, "Q N"]:
        """Return how much each sentence is like those with feedback: 0 beyond their reach, 1 if it is the same."""
        length = np.linalg.norm(sentences, axis=1, keepdims=True)
        cosines = (sentences / np.where(length > 0, length, 1)) @ self.sentences.T
        return np.clip((cosines - self.reach) / (1 - self.reach), 0, 1).astype(np.float32)

    def applied(
        self, vectors: Mapping[str, Float[np.ndarray, "Q D"]], sentences: Float[np.ndarray, "Q E"]
    ) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return the corrected vectors of queries.

        Args:
            vectors: The vectors of each branch that the model computes.
            sentences: The sentence vectors of the queries, from the backbone.
        """
        likeness = self.likeness(sentences)
        return {
            branch: each + np.linalg.norm(each, axis=1, keepdims=True) * (likeness @ self.moves[branch])
            if branch in self.moves
            else each
            for branch, each in vectors.items()
        }

    def to_bytes(self) -> bytes:
        """Return the file of the adaptation. The same adaptation gives the same bytes."""
        file = io.BytesIO()
        moves = {f"{_MOVES}{branch}": each for branch, each in self.moves.items()}
        np.savez(file, allow_pickle=False, **{_KEYS: self.sentences, _REACH: self.reach}, **moves)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Adaptation":
        """Return the adaptation in a file. Raise BadLibrary if it is damaged."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: np.asarray(file[name], np.float32) for name in file.files}
            return cls(
                sentences=arrays.pop(_KEYS),
                reach=arrays.pop(_REACH),
                moves={name.removeprefix(_MOVES): each for name, each in arrays.items()},
            )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise BadLibrary(f"{NAME} is damaged ({error}). Learn again: midreel adapt LIBRARY") from error


class AdaptedEncoder:
    """A model with an adaptation. It implements `midreel.library.encoder.Encoder`.

    Args:
        base: The model.
        adaptation: The correction of its queries.
    """

    def __init__(self, base: "Encoder", adaptation: Adaptation) -> None:
        self.base, self.adaptation = base, adaptation
        self.width, self.num_frames, self.similarities = base.width, base.num_frames, base.similarities
        self.branch_weights, self.curve_weights = base.branch_weights, base.curve_weights

    def encode_videos(self, frames: Float[np.ndarray, "B T C"]) -> dict[str, Tokens]:
        """Return the tokens of each branch, as the model does."""
        return self.base.encode_videos(frames)

    def encode_queries(self, texts: Sequence[TextFeatures]) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return the corrected vectors of each branch, a row for each query."""
        return self.adaptation.applied(self.base.encode_queries(texts), sentence_vectors(texts))

    def files(self) -> dict[str, bytes]:
        """Return the files of the model and of the adaptation."""
        return self.base.files() | {NAME: self.adaptation.to_bytes()}


def sentence_vectors(texts: Sequence[TextFeatures]) -> Float[np.ndarray, "Q E"]:
    """Return the sentence vector of each text."""
    return np.stack([np.asarray(text.sentence, np.float32) for text in texts])
