"""Pictures of moments, decoded on request and cached."""

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from io import IOBase
from pathlib import Path

from midreel.server.listing import Item

FORMATS = {"image/webp": ("WEBP", {"quality": 78, "method": 2}), "image/jpeg": ("JPEG", {"quality": 82})}
MAX_ASPECT = 4  # height divided by width; WebP is limited to 16,383 pixels
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Key:
    """Identifies a thumbnail: the video and its version, the time, the width and the format."""

    video_id: str
    version: str
    time: float
    width: int
    media_type: str

    @classmethod
    def of(cls, item: Item, time: float, width: int, accept: str | None) -> "Key":
        """Return the key of a request. Times are rounded to 0.1 s, so that neighbours share a picture.

        Args:
            item: The video.
            time: The time in seconds. Times after the end mean the end.
            width: The maximum width in pixels.
            accept: The Accept header of the request. WebP is chosen if it is listed, otherwise JPEG.
        """
        chosen = "image/webp" if "image/webp" in (accept or "") else "image/jpeg"
        time = round(min(time, item.duration), 1)
        return cls(video_id=item.id, version=item.version, time=time, width=width, media_type=chosen)

    @property
    def etag(self) -> str:
        """The entity tag of the thumbnail."""
        return f'"{self.video_id}-{self.version}-{self.time:g}-{self.width}-{self.media_type[6:]}"'


class Cache:
    """The most recently used thumbnails, up to a total size."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._pictures: OrderedDict[Key, bytes] = OrderedDict()  # most recently used last
        self._lock = threading.Lock()

    def get(self, key: Key) -> bytes | None:
        """Return a thumbnail, or None if it is not cached."""
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
            return self._pictures.get(key)

    def put(self, key: Key, picture: bytes) -> None:
        """Add a thumbnail. Remove the least recently used ones if the cache is too large."""
        with self._lock:
            self._bytes += len(picture) - len(self._pictures.pop(key, b""))
            self._pictures[key] = picture
            while self._bytes > self._max_bytes and len(self._pictures) > 1:
                self._bytes -= len(self._pictures.popitem(last=False)[1])


def draw(path: Path, key: Key, file: IOBase | None = None) -> bytes:
    """Return the encoded frame at a time, scaled down to the width, and at most MAX_ASPECT times as high.

    Args:
        path: The video file.
        key: What to draw.
        file: The content of the file, if it is not on a disk.
    """
    from PIL import Image  # neither is needed to search

    from midreel.media import decode

    [(_, frame)] = decode.frames_at(path, [key.time], file)
    image = Image.fromarray(frame)
    scale = min(1.0, key.width / image.width, MAX_ASPECT * key.width / image.height)
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BOX)
    form, options = FORMATS[key.media_type]
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()
