import io
from pathlib import Path

import av
import pytest
from PIL import Image

from midreel.server.thumbnails import FORMATS, MAX_ASPECT, Key, draw


@pytest.mark.parametrize("media_type", FORMATS)
@pytest.mark.parametrize("size", [(4, 20_000), (20_000, 4), (64, 48)])
def test_thumbnails_of_extreme_aspect_ratios(tmp_path: Path, media_type: str, size: tuple[int, int]) -> None:
    width, height = size
    with av.open(str(tmp_path / "film.mov"), "w") as container:
        stream = container.add_stream("qtrle", rate=1)
        stream.width, stream.height, stream.pix_fmt = width, height, "gray"
        container.mux(stream.encode(av.VideoFrame(width, height, "gray")))
        container.mux(stream.encode(None))
    key = Key(video_id="a", version="1", time=0.0, width=320, media_type=media_type)
    with Image.open(io.BytesIO(draw(tmp_path / "film.mov", key))) as image:
        assert image.width <= 320
        assert image.height <= MAX_ASPECT * 320
        assert size != (64, 48) or image.size == (64, 48)
