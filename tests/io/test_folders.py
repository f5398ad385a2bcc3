from pathlib import Path

import pytest

from midreel.io.folders import recover, replacing


def fill(target: Path, text: str) -> None:
    with replacing(target) as new:
        (new / "file").write_text(text)


def fail(target: Path) -> None:
    with replacing(target) as new:
        (new / "file").write_text("half")
        raise OSError("disk full")


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "last"
    fill(target, "one")
    fill(target, "two")
    assert (target / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_failure_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "last"
    fill(target, "one")
    with pytest.raises(OSError, match="disk full"):
        fail(target)
    assert (target / "file").read_text() == "one"
    fill(target, "two")
    assert (target / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize("moment", ["filled", "old aside", "new in place"])
def test_a_kill_at_any_moment_leaves_one_whole_folder(tmp_path: Path, moment: str) -> None:
    target, new, old = tmp_path / "last", tmp_path / ".last.new", tmp_path / ".last.old"
    fill(target, "one")
    new.mkdir()
    (new / "file").write_text("two")
    if moment != "filled":
        target.rename(old)
    if moment == "new in place":
        new.rename(target)
    recover(target)
    assert (target / "file").read_text() == ("two" if moment == "new in place" else "one")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
