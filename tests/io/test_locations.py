from pathlib import Path

import pytest

from midreel.errors import BadSetting
from midreel.io.locations import PathMap


def test_the_longest_folder_counts() -> None:
    found = PathMap.parse(["/a=/x", "/a/b=s3://films/", "/c=/y"])
    assert found.apply(Path("/a/c.mp4")) == "/x/c.mp4"
    assert found.apply(Path("/a/b/d/c.mp4")) == "s3://films/d/c.mp4"
    assert found.apply(Path("/ab/c.mp4")) is None
    assert found.folder_of(Path("/a/c.mp4")) == Path("/x")
    assert found.folder_of(Path("/a/b/c.mp4")) is None


@pytest.mark.parametrize("text", ["/a", "/a=", "a=/x", "/a=x", "/a=s3://key:s3cret@films", "/a=s3://s3cret@films"])
def test_bad_maps_are_refused_without_secrets(text: str) -> None:
    with pytest.raises(BadSetting) as error:
        PathMap.parse([text])
    assert "s3cret" not in str(error.value)
