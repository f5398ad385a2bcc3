"""Another model from the features that were kept, while the old one serves."""

import os
import shutil
from pathlib import Path

import pytest

from midreel.errors import BadStore
from midreel.library import tokens
from midreel.library.indexing import Step
from midreel.library.layout import Layout
from midreel.search import Searcher
from tests.library.small import Eye, Killed, damaged, everything, found, index, opened


def test_another_model_without_decoding(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    shutil.rmtree(videos)
    steps: list[Step] = []
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert searcher.index.branch_weights == {"clip": 0.0, "frame": 1.0}
        with opened(library) as indexer:
            report = indexer.reindex("zero-shot-clips", steps.append)
            assert indexer.generation.name == "2"
        assert (report.num_videos, report.model, len(steps)) == (3, "zero-shot-clips", 3)
        assert report.text.startswith("3 videos are now searched with zero-shot-clips, in ")
        assert len(searcher.search("red")) == 3
        assert searcher.index.branch_weights == {"clip": 0.4, "frame": 0.6}
    assert [each.name for each in Layout(library).generations()] == ["2"]
    with opened(library) as indexer:
        indexer.reindex("zero-shot")
    assert everything(library) == before


def test_the_old_index_serves_until_the_switch(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    before = everything(library)

    def stop(step: Step) -> None:
        assert everything(library) == before
        raise Killed

    with opened(library) as indexer, pytest.raises(Killed):
        indexer.reindex("zero-shot-clips", stop)
    assert everything(library) == before
    encoded: list[object] = []
    encode = tokens.encode
    monkeypatch.setattr(tokens, "encode", lambda *given: encoded.append(1) or encode(*given))
    with opened(library) as indexer:
        assert indexer.reindex("zero-shot-clips").generation == "2"
    assert len(encoded) == 2  # one was there
    assert len(found(library, "red")) == 3


def test_the_old_index_serves_on_if_nothing_can_be_encoded(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as indexer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer.store, "video", damaged)
        with pytest.raises(
            BadStore, match=r"of 3 videos none could be encoded.* serves on\. Run first, .* midreel index .*--retry"
        ):
            indexer.reindex("zero-shot-clips")
    assert everything(library) == before
    assert Layout(library).settings().serving == "1"


def test_all_is_on_the_disk_before_an_old_generation_goes(
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
    with opened(library) as indexer:
        indexer.reindex("zero-shot-clips")
    new = {"model.new", "model.new/config.json.new", "model.new/model.safetensors.new", "generations/2"}
    assert seen[0] >= new | {"generations", "features.h5", "library.json.new", str(library)}
    modes = {path.stat().st_mode & 0o777 for path in library.rglob("*") if path.is_file()}
    assert modes == {(library / "library.json").stat().st_mode & 0o777}  # who may read one may read all


def test_the_same_model_again(videos: Path, library: Path) -> None:
    """When the index is damaged beyond what can be opened."""
    index(library, videos)
    before = everything(library)
    for path in (Layout(library).generation("1").index).iterdir():
        path.write_bytes(b"")
    with opened(library) as indexer:
        indexer.reindex()
    assert everything(library) == before
