"""TF-PRVR: "Training-Free Partially Relevant Video Retrieval for Real-World Generalization" (NeurIPS 2026).

This method is not trained. It cuts a video at changes of direction of its frame features, on several time scales, and
links all segments of all scales in a graph. A query's cosines with the segments spread over the graph, r = K y. The
score of an instant is the mean of r over the segments that contain it, and the score of a video that of its best
instant.

r is linear in the query, so the score of an instant is a dot product of the query with a vector that depends on the
video only: <u_τ, t>, u_τ = Σ_j a_τj v̂_j, where a_τ is the mean of the rows of K of the segments that contain τ. The
vectors are computed once for each video. A search is the best dot product, as with any other method.

The paper leaves some points open, and the authors' code differs from it in others:

| | `variant="paper"` | `variant="released"` |
|---|---|---|
| levels of a signal of n samples | ⌊log2 n⌋ | ⌊log2(n / 7)⌋, as PyWavelets advises |
| fewer frames than one level needs | below 4: each frame is a token | below 16: the whole video is one token |
| a peak of sample i cuts before frame | i + 1 | i + 2 |
| a segment is the mean of | frames | frames of length one |
| links between two levels | half: the matrix is filled above its diagonal, then made symmetric | whole |

In both, a peak is larger than its two neighbours, and a segment has the link 1 with itself.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.methods.base import Branch, Method
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.methods.untrained import TFPRVRConfig
from midreel.ops import segments
from midreel.ops.moment_graph import moment_vectors
from midreel.ops.precision import at_least_single
from midreel.types import Similarity, Tokens


class TFPRVR(Method):
    """A ranking of videos by CLIP's own embeddings that are spread over a graph of segments, without training.

    Frames must be image embeddings and sentences text embeddings of one joint space. If frames are wider, such as
    SlowFast and CLIP side by side, the last `width` channels are used.
    """

    Config = TFPRVRConfig
    paper = Paper(
        method="TF-PRVR",
        title="TF-PRVR: Training-Free Partially Relevant Video Retrieval for Real-World Generalization",
        bibtex="""@inproceedings{kim2026tfprvr,
  title = {{TF-PRVR}: Training-Free Partially Relevant Video Retrieval for Real-World Generalization},
  author = {Kim, Giyeol and Eom, Chanho},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2026}
}""",
    )

    def __init__(self, config: TFPRVRConfig) -> None:
        super().__init__(config)

    # ------------------------------------------------------------ videos and queries

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Return the frames, padded to `num_frames`, and the tokens as their clips.

        All of the method happens here, because the tokens depend on the features only.

        Raises:
            BadBatch: the frames are narrower than the joint space.
        """
        if features.shape[2] < self.config.width:
            raise BadBatch(
                f"frames have width {features.shape[2]}, expected at least {self.config.width}. Set width to the width "
                f"of the joint space."
            )
        joint = at_least_single(features[..., -self.config.width :])
        frames, mask = segments.cap(joint, self.num_frames, num_frames)
        tokens = torch.zeros_like(frames)
        clip_of_frame = torch.zeros_like(mask, dtype=torch.long)
        for video, num_real in enumerate(mask.sum(1).tolist()):
            own, token_of_frame = moment_vectors(
                frames[video, :num_real].double().cpu().numpy(), self.config.spread, self.config.variant
            )
            tokens[video, : len(own)] = torch.from_numpy(own)
            clip_of_frame[video, :num_real] = torch.from_numpy(token_of_frame)
        return VideoBatch(frames=frames, clip_of_frame=clip_of_frame, mask=mask, clips=tokens)

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values. A program without midreel cannot repeat it."""
        return super().preparation() | {"frames": "capped", "clips": "tf_prvr"}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return the token of each frame."""
        return self.prepare_videos(frames).clip_of_frame

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the tokens u_τ, one for each part of the video in which no level has a cut.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        expected = (self.num_frames, self.config.width)
        if videos.mask is None or videos.clips is None or tuple(videos.clips.shape[1:]) != expected:
            raise BadBatch(
                f"videos have no mask or no clips, or not {expected[0]} clips of width {expected[1]}. Create the batch "
                f"with this method's prepare_videos()."
            )
        total = videos.mask.shape[1]
        token_of_frame = torch.where(videos.mask, videos.clip_of_frame, -1)  # padding belongs to no token
        share = total / videos.mask.sum(1)[:, None, None]
        spans = segments.segment_spans(token_of_frame, total) * share
        mask = segments.segment_sizes(token_of_frame, total) > 0
        return {"clip": Tokens(vectors=videos.clips, mask=mask, spans=spans)}

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the sentence vectors at length one.

        Raises:
            BadBatch: there are no sentence vectors, or they have another width.
        """
        if queries.sentence is None:
            raise BadBatch("queries have no sentence vectors, expected one for each. Encode the sentences.")
        if queries.sentence.shape[1] != self.config.width:
            raise BadBatch(
                f"sentences have width {queries.sentence.shape[1]}, expected {self.config.width}. Use the backbone of "
                f"the frames."
            )
        sentence = at_least_single(queries.sentence)
        return {"clip": sentence / sentence.norm(dim=-1, keepdim=True).clamp_min(1e-12)}

    @property
    def branches(self) -> dict[str, Branch]:
        """The only branch. The length of its tokens counts."""
        return {"clip": Branch(role="segments", rank_weight=1.0, curve_weight=1.0, similarity=Similarity(kind="dot"))}
