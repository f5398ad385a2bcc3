"""MS-SL: "Partially Relevant Video Retrieval" (ACM Multimedia 2022), the first method of this task.

The clip branch compares a query with the mean of every run of consecutive clips, 528 proposals for 32 clips. The best
one, the key clip, guides an attention over up to 128 frames. The network is in `key_clip`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from midreel.methods.key_clip import KeyClip, check_key_clip
from midreel.methods.model_card import Paper
from midreel.ops import segments


@dataclass(frozen=True, kw_only=True)
class MSSLConfig:
    """The settings of MS-SL. The defaults are the release's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["ms_sl"] = "ms_sl"

    # Inputs
    video_width: int = 1024  # Width of the frame features. Must match the backbone.
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # A video with more frames is resampled to this many. A shorter one is padded.
    num_clips: int = 32  # Clips of a video. Every run of consecutive clips is a proposal.
    max_words: int = 30  # Longest query, in tokens of the backbone. The rest is dropped.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    input_dropout: float = 0.1  # Dropout rate of the inputs.
    dropout: float = 0.1  # Dropout rate inside the network.
    frame_weight: float = 0.3  # Weight of the frame branch in the score. The clip branch has the rest.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong ones.

    def __post_init__(self) -> None:
        check_key_clip(self)


class MSSL(KeyClip):
    """MS-SL as released. The network is in `key_clip` and `nn`, the losses in `losses`."""

    Config = MSSLConfig
    paper = Paper(
        method="MS-SL",
        title="Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{dong2022partially,
  title = {Partially Relevant Video Retrieval},
  author = {Dong, Jianfeng and Chen, Xianke and Zhang, Minsong and Yang, Xun and Chen, Shujie and Li, Xirong and
    Wang, Xun},
  booktitle = {Proceedings of the 30th ACM International Conference on Multimedia},
  pages = {246--257},
  year = {2022}
}""",
    )

    def __init__(self, config: MSSLConfig) -> None:
        super().__init__(config)

    def clip_features(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B S C"]:
        """Average the frames over equal windows."""
        return segments.resample(features, self.config.num_clips, num_frames)

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        return super().preparation() | {"frames": "capped", "clips": "averaged"}
