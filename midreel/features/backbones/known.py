"""The backbones that midreel knows by name or kind, with their widths, languages and licences.

A folder or hub id of the same kind works too. The licences are those that the publishers state; check them before use.
"""

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from midreel.features.backbones.base import OFFLINE


@dataclass(frozen=True, kw_only=True)
class Known:
    """A backbone.

    Attributes:
        spec: Its name, as `load_backbone` takes it.
        kind: The `model_type` of its config.json, or "" if it has none.
        width: The width of a vector.
        window: The number of frames of a vector.
        languages: The languages of its texts; empty if it encodes none.
        licence: The licence of its weights.
        needs: The extra of midreel that it needs; empty if none.
    """

    spec: str
    kind: str = ""
    width: int
    window: int = 1
    languages: str
    licence: str
    needs: str = ""

    @property
    def installed(self) -> bool:
        """Whether the packages that compute it are installed. Weights of the hub may still have to be downloaded."""
        if self.needs == "offline":
            from midreel.features.backbones import offline

            return offline.installed()
        return self.needs != "train" or all(find_spec(name) is not None for name in ("torch", "transformers"))

    def to_dict(self) -> dict[str, Any]:
        """Return the backbone as JSON values."""
        return {**asdict(self), "installed": self.installed}


KNOWN = (
    Known(spec="tiny-clip", kind="clip", width=128, languages="English, of the playhouse", licence="Apache-2.0"),
    Known(
        spec=OFFLINE,
        width=1000,
        languages="English",
        licence="Apache-2.0, MIT, WordNet",
        needs="offline",
    ),
    Known(spec="openai/clip-vit-base-patch32", kind="clip", width=512, languages="English", licence="MIT"),
    Known(spec="openai/clip-vit-large-patch14", kind="clip", width=768, languages="English", licence="MIT"),
    Known(spec="google/siglip-base-patch16-224", kind="siglip", width=768, languages="English", licence="Apache-2.0"),
    Known(spec="google/siglip2-base-patch16-224", kind="siglip", width=768, languages="many", licence="Apache-2.0"),
    Known(
        spec="facebook/metaclip-2-worldwide-huge-quickgelu",
        kind="metaclip_2",
        width=1024,
        languages="more than 300",
        licence="CC BY-NC 4.0",
        needs="train",
    ),
    Known(
        spec="google/videoprism-lvt-base-f16r288",
        kind="videoprism",
        width=768,
        window=16,
        languages="English",
        licence="Apache-2.0",
        needs="train",
    ),
    Known(spec="slowfast:FILE", width=2304, window=32, languages="", licence="Apache-2.0", needs="train"),
)
