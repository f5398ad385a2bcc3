"""Reindex a library with another model, while the old generation is searched."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midreel.errors import BadLibrary, BadStore, Unwritable
from midreel.library import encoder, indexer
from midreel.library import reindex as reindexing
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.report import Step
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from tests.library.small import Eye, Killed, damaged, everything, found, index, kill, opened


def test_reindex_with_another_model_decodes_nothing(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    shutil.rmtree(videos)
    steps: list[Step] = []
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert searcher.index.branch_weights == {"clip": 0.0, "frame": 1.0}
        with opened(library) as writer:
            report = reindex(writer, "zero-shot-clips", steps.append)
            assert writer.generation.name == "2"
        assert (report.num_videos, report.model, len(steps)) == (3, "zero-shot-clips", 3)
        assert "zero-shot-clips" in report.text
        assert len(searcher.search("red")) == 3
        assert searcher.index.branch_weights == {"clip": 0.4, "frame": 0.6}
    assert [each.name for each in Layout(library).generations()] == ["2"]
    with opened(library) as writer:
        reindex(writer, "zero-shot")
    assert everything(library) == before


def test_the_old_generation_is_searched_until_the_new_one_is_complete(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(library, videos)
    before = everything(library)

    def stop(step: Step) -> None:
        assert everything(library) == before
        raise Killed

    with opened(library) as writer, pytest.raises(Killed):
        reindex(writer, "zero-shot-clips", stop)
    assert everything(library) == before
    encoded: list[object] = []
    encode = encoder.encode_windows
    monkeypatch.setattr(reindexing, "encode_windows", lambda *given: encoded.append(1) or encode(*given))
    with opened(library) as writer:
        assert reindex(writer, "zero-shot-clips").generation == "2"
    assert len(encoded) == 2  # the interrupted run encoded the first
    assert len(found(library, "red")) == 3


def test_the_old_generation_stays_if_all_features_are_damaged(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer.store, "video", damaged)
        with pytest.raises(BadStore, match="--retry"):
            reindex(writer, "zero-shot-clips")
    assert everything(library) == before
    assert Layout(library).settings().serving == "1"


def test_the_new_generation_is_synced_before_the_old_one_is_deleted(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(library, videos)
    synced, fsync, drop = set[str](), os.fsync, Layout.drop_generations
    seen: list[set[str]] = []

    def note(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()).removeprefix(f"{library}/"))
        fsync(handle)

    def look(layout: Layout, *, but: str) -> None:
        seen.append(set(synced))
        drop(layout, but=but)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Layout, "drop_generations", look)
    with opened(library) as writer:
        reindex(writer, "zero-shot-clips")
    new = {"model.new", "model.new/config.json.new", "model.new/model.safetensors.new", "generations/2"}
    assert seen[0] >= new | {"generations", "features.h5", "library.json.new", str(library)}
    modes = {path.stat().st_mode & 0o777 for path in library.rglob("*") if path.is_file()}
    assert modes == {(library / "library.json").stat().st_mode & 0o777}  # all files have the same permissions


def test_reindex_with_the_same_model_replaces_a_damaged_index(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    for path in (Layout(library).generation("1").index).iterdir():
        path.write_bytes(b"")
    with opened(library) as writer:
        reindex(writer)
    assert everything(library) == before


class Deletions:
    """Raises Killed at the n-th deletion of a file or folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, most: int) -> None:
        self._left = most
        for name in ("unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, delete: Callable[..., None]) -> Callable[..., None]:
        def counted(*given: object, **named: object) -> None:
            if not self._left:
                raise Killed
            self._left -= 1
            delete(*given, **named)

        return counted


@pytest.mark.slow
def test_a_kill_while_the_old_generation_is_deleted_is_harmless(videos: Path, library: Path) -> None:
    """A half deleted generation may have a card and an index, but no model."""
    index(library, videos)
    before = everything(library)
    num_kills = 0
    for most in range(100):
        with pytest.MonkeyPatch.context() as patch:
            Deletions(patch, most=most)
            try:
                with opened(library) as writer:
                    reindex(writer)
            except Killed:
                num_kills += 1
            else:
                break
        assert everything(library) == before
        with opened(library) as writer:
            reindex(writer)
        assert everything(library) == before
    assert num_kills >= 5  # a generation has more files than that
    assert [path.name for path in (library / "generations").iterdir()] == [Layout(library).settings().serving]


def test_an_unfinished_generation_with_a_damaged_model_is_not_continued(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as writer, pytest.raises(Killed):
        reindex(writer, "zero-shot-clips", kill)
    (begun,) = [each for each in Layout(library).generations() if each.name != Layout(library).settings().serving]
    (begun.model / "model.safetensors").unlink()
    with opened(library) as writer:
        reindex(writer, "zero-shot-clips")
    assert len(found(library, "red")) == 3
    with opened(library) as writer:
        reindex(writer, "zero-shot")
    assert everything(library) == before


def test_damaged_tokens_of_an_interrupted_run_are_rebuilt(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as writer, pytest.raises(Killed):
        reindex(writer, None, kill)
    (begun,) = [each for each in Layout(library).generations() if each.name != Layout(library).settings().serving]
    for path in begun.index.glob("*.tokens*"):
        path.write_bytes(bytes(path.stat().st_size))
    with opened(library) as writer:
        reindex(writer)
    assert Layout(library).settings().serving == begun.name
    assert everything(library) == before


def test_a_lost_model_is_restored_from_the_original(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    for retry in (True, False):
        shutil.rmtree(Layout(library).serving().model)
        with pytest.raises(BadLibrary, match="--retry"):
            everything(library)
        index(library, videos, retry=retry)
        assert everything(library) == before


def test_a_lost_model_without_an_original_is_an_error(videos: Path, library: Path, run_folder: Path) -> None:
    model = library.with_name("model")
    shutil.copytree(run_folder / "best", model)
    with Writer.open(library, Wanted(model=str(model))) as writer:
        indexer.index(writer, [videos])
    (Layout(library).serving().model / "config.json").unlink()
    shutil.rmtree(model)
    with Writer.open(library) as writer, pytest.raises(BadLibrary, match="midreel reindex"):
        indexer.index(writer, [videos], retry=True)


def test_a_failed_reindex_leaves_no_files(videos: Path, library: Path) -> None:
    index(library, videos)
    before, files = everything(library), sorted(library.rglob("*[!lm]"))  # without SQLite's -wal and -shm

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for place in ("encoder.write_durably", "tokens.EmbeddedIndex.create", "tokens.EmbeddedIndex.add"):
        with opened(library) as writer, pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"midreel.library.{place}", full)
            with pytest.raises((Unwritable, OSError)):
                reindex(writer, "zero-shot-clips")
        assert everything(library) == before
        index(library, videos)
        assert sorted(library.rglob("*[!lm]")) == files


def test_leftovers_of_killed_writers_are_removed(videos: Path, library: Path) -> None:
    index(library, videos)
    before = {path.name for path in library.iterdir()}
    for name in ("model.new", "generations/7.dropped", "generations/8"):
        (library / name / "model").mkdir(parents=True)
    for name in ("features.h5.tmp", "library.json.new", "catalogue.sqlite.new-wal"):
        (library / name).touch()
    index(library, videos)
    assert {path.name for path in library.iterdir()} == before
    assert [path.name for path in (library / "generations").iterdir()] == ["1"]
