"""MS-SL: "Partially Relevant Video Retrieval" (ACM Multimedia 2022), the first method of this task.

The clip branch compares a query with the mean of every run of consecutive clips, 528 proposals for 32 clips. The best
one, the key clip, guides an attention over up to 128 frames. The network is in `key_clip`.
"""

from dataclasses import dataclass
from typing import Literal

from midreel.methods.key_clip import KeyClip, KeyClipConfig
from midreel.methods.model_card import Paper


@dataclass(frozen=True, kw_only=True)
class MSSLConfig(KeyClipConfig):
    """The settings of MS-SL. The defaults are the release's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["ms_sl"] = "ms_sl"


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
