"""CLIP zero-shot: rank videos by the cosine of the sentence and the best frame.

This method is not trained. It is the row "CLIP zero-shot" of the MSC paper's table for TVR, ActivityNet Captions and
Charades-STA. The paper does not say how it pools frames. This implementation takes the maximum, over `num_frames`
windows of a long video or all frames of a short one. Other ways to pool are settings:

| pooling | settings |
|---|---|
| the best of all frames | `num_frames` at least as large as the longest video |
| the best of 32 windows | `num_frames=32` |
| the cosine of the mean of all frames | `clips="whole", num_clips=1, clip_weight=1` |
| the best frame and the best of 32 clips, 0.6 to 0.4 | `clip_weight=0.4`, and `clips` for the kind of clips |

Two more are not possible. The mean of the best k cosines is no best cosine of a token: it is the best dot product with
the means of all sets of k frames, which are far too many tokens. A prompt such as "a photo of …" changes the sentences
before the backbone encodes them, and a method sees only their vectors.

There is no setting to scale frames to length one before they are averaged. A new setting would change the config.json,
and so the digest, of every library that this method has indexed.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    Method,
    clip_inputs,
    expect_sentences,
    segment_tokens,
    uniform_tokens,
)
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.methods.untrained import ClipZeroShotConfig
from midreel.ops import segments
from midreel.ops.precision import at_least_single
from midreel.types import Tokens


class ClipZeroShot(Method):
    """A ranking of videos by CLIP's own embeddings, without training.

    Frames must be image embeddings and sentences text embeddings of one joint space. If frames are wider, such as
    SlowFast and CLIP side by side, the last `width` channels are used.
    """

    Config = ClipZeroShotConfig
    paper = Paper(
        method="CLIP zero-shot",
        title="Learning Transferable Visual Models From Natural Language Supervision",
        bibtex="""@inproceedings{radford2021learning,
  title = {Learning Transferable Visual Models From Natural Language Supervision},
  author = {Radford, Alec and Kim, Jong Wook and Hallacy, Chris and Ramesh, Aditya and Goh, Gabriel and
            Agarwal, Sandhini and Sastry, Girish and Askell, Amanda and Mishkin, Pamela and Clark, Jack and
            Krueger, Gretchen and Sutskever, Ilya},
  booktitle = {International Conference on Machine Learning},
  year = {2021}
}""",
    )

    def __init__(self, config: ClipZeroShotConfig) -> None:
        super().__init__(config)

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Resample the frames, and cut clips. For `clips="whole"`, average the original frames to one clip."""
        videos = super().prepare_videos(features, num_frames)
        if self.config.clips != "whole":
            return videos
        lengths = [features.shape[1]] * len(features) if num_frames is None else num_frames.tolist()
        # Not the mean of the resampled frames: a short video repeats some of its frames, and not all equally often.
        means = [at_least_single(frames[:length]).mean(0) for frames, length in zip(features, lengths, strict=True)]
        return replace(videos, clips=torch.stack(means)[:, None])

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        return self.config.preparation()

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return clips of equal length, or of similar neighbouring frames (Algorithm 1 of MSC)."""
        cut = segments.order_preserving if self.config.clips == "order_preserving" else segments.uniform
        return cut(frames, self.config.num_clips)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the embeddings of the frames, and their means for the clips.

        Raises:
            BadBatch: the frames are narrower than the joint space, or padded.
        """
        if videos.frames.shape[2] < self.config.width:
            raise BadBatch(
                f"frames have width {videos.frames.shape[2]}, expected at least {self.config.width}. Set width to the "
                f"width of the joint space."
            )
        means, _ = clip_inputs(videos, self.config.num_clips)
        channels = slice(-self.config.width, None)
        return {
            "clip": segment_tokens(means[..., channels], videos.clip_of_frame),
            "frame": uniform_tokens(at_least_single(videos.frames[..., channels])),
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the sentence vectors, the same for both branches.

        Raises:
            BadBatch: there are no sentence vectors, or they have another width.
        """
        sentence = expect_sentences(queries, self.config.width)
        return {"clip": sentence, "frame": sentence}

    @property
    def branches(self) -> dict[str, Branch]:
        """The clip branch with the weight `clip_weight` in the score, and the frame branch."""
        weight = self.config.clip_weight
        return {
            "clip": Branch(role="segments", rank_weight=weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="frames", rank_weight=1 - weight, curve_weight=FRAME_CURVE_WEIGHT),
        }
