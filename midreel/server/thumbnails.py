"""Pictures of moments, decoded when they are asked for, the latest kept."""

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from midreel.media import decode
from midreel.server.listing import Item

FORMATS = {"image/webp": ("WEBP", {"quality": 78, "method": 2}), "image/jpeg": ("JPEG", {"quality": 82})}
TALLEST = 4  # times as high as it may be wide; WebP cannot hold 16,384 pixels
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Wanted:
    video_id: str
    version: str
    time: float
    width: int
    media_type: str

    @classmethod
    def of(cls, item: Item, time: float, width: int, accept: str | None) -> "Wanted":
        """A tenth of a second is as good as another, so that neighbours share a picture."""
        chosen = "image/webp" if "image/webp" in (accept or "") else "image/jpeg"
        time = round(min(time, item.duration), 1)
        return cls(video_id=item.id, version=item.version, time=time, width=width, media_type=chosen)

    @property
    def tag(self) -> str:
        return f'"{self.video_id}-{self.version}-{self.time:g}-{self.width}-{self.media_type[6:]}"'


class Cache:
    """The pictures that were asked for last, as many as fit."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._pictures: OrderedDict[Wanted, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, wanted: Wanted) -> bytes | None:
        with self._lock:
            if wanted in self._pictures:
                self._pictures.move_to_end(wanted)
            return self._pictures.get(wanted)

    def put(self, wanted: Wanted, picture: bytes) -> None:
        with self._lock:
            self._bytes += len(picture) - len(self._pictures.pop(wanted, b""))
            self._pictures[wanted] = picture
            while self._bytes > self._most and len(self._pictures) > 1:
                self._bytes -= len(self._pictures.popitem(last=False)[1])


def draw(path: Path, wanted: Wanted) -> bytes:
    """The frame shown at a time, no wider than wanted, and not much higher."""
    [(_, frame)] = decode.frames_at(path, [wanted.time])
    image = Image.fromarray(frame)
    scale = min(1.0, wanted.width / image.width, TALLEST * wanted.width / image.height)
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BOX)
    form, options = FORMATS[wanted.media_type]
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()
