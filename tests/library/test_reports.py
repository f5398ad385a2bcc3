from pathlib import Path

from tests import zoo
from tests.library.small import index


def test_a_download_that_was_cut_off_is_indexed_and_told(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    report = index(library, videos)
    assert report.text.startswith(f"damaged {path}: 1 packet could not be decoded, it ends at 1.9 s of 5.0 s\n4 new")
