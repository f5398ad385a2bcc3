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


def test_a_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "last"
    fill(target, "one")
    fill(target, "two")
    assert (target / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_failure_keeps_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "last"
    fill(target, "one")
    with pytest.raises(OSError, match="disk full"):
        fail(target)
    assert (target / "file").read_text() == "one"
    fill(target, "two")
    assert (target / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize("moment", ["new filled", "old renamed", "new renamed"])
def test_recovery_after_a_kill(tmp_path: Path, moment: str) -> None:
    target, new, old = tmp_path / "last", tmp_path / ".last.new", tmp_path / ".last.old"
    fill(target, "one")
    new.mkdir()
    (new / "file").write_text("two")
    if moment != "new filled":
        target.rename(old)
    if moment == "new renamed":
        new.rename(target)
    recover(target)
    assert (target / "file").read_text() == ("two" if moment == "new renamed" else "one")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
