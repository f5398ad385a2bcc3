import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadStore
from midreel.features.stores.quarantine import Quarantine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"no video")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "features.h5"


def test_an_unreadable_file_is_remembered(file: Path, store: Path) -> None:
    Quarantine(store).add("a", file, "it is no video")
    assert Quarantine(store).reason("a", file) == "it is no video"
    assert Quarantine(store).reason("b", file) is None
    assert Quarantine(store).reason("a", None) is None
    assert Quarantine(store, retry=True).reason("a", file) is None
    found = json.loads((store.parent / "features.quarantine.json").read_text())
    assert found == {
        "a": {"path": str(file), "reason": "it is no video", "size": 8, "modified": file.stat().st_mtime_ns}
    }


def test_a_changed_or_missing_file_is_not_skipped(file: Path, store: Path) -> None:
    quarantine = Quarantine(store)
    quarantine.add("a", file, "it is no video")
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert quarantine.reason("a", file) is None
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert quarantine.reason("a", file) is not None
    file.write_bytes(b"no video?")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert quarantine.reason("a", file) is None
    file.unlink()
    assert quarantine.reason("a", file) is None
    quarantine.add("b", file, "gone meanwhile")
    assert len(Quarantine(store)) == 1


def test_the_last_release_removes_the_json_file(file: Path, store: Path) -> None:
    quarantine = Quarantine(store)
    quarantine.release("a")
    for name in ("a", "b"):
        quarantine.add(name, file, "it is no video")
    quarantine.release("a")
    assert (Quarantine(store).reason("a", file), len(Quarantine(store))) == (None, 1)
    quarantine.release("b")
    assert [path.name for path in store.parent.iterdir()] == ["a.mp4"]


def test_an_interrupted_write_leaves_the_old_file(file: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = Quarantine(store)
    quarantine.add("a", file, "it is no video")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quarantine.add("b", file, "it is no video either")
    assert len(Quarantine(store)) == 1
    assert len(list(store.parent.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"path": "x"}}', '"a"'])
def test_a_damaged_json_file(store: Path, text: str) -> None:
    store.with_suffix(".quarantine.json").write_text(text)
    with pytest.raises(BadStore, match=r"features\.quarantine\.json"):
        Quarantine(store)


@given(st.text(), st.text())
def test_any_name_and_any_reason(tmp_path_factory: pytest.TempPathFactory, name: str, reason: str) -> None:
    file = tmp_path_factory.mktemp("any") / "a.mp4"
    file.touch()
    Quarantine(file).add(name, file, reason)
    assert Quarantine(file).reason(name, file) == reason
