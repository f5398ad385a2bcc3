"""A library that is open for writing: what it is made with, what can be recovered, and who may not write."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from midreel.errors import BadLibrary, BadSetting, FingerprintMismatch, LibraryBusy
from midreel.features.backbones.base import load_backbone
from midreel.library import indexer
from midreel.library.catalogue import Catalogue
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.session import Wanted, Writer
from midreel.methods.loading import DATA
from tests.library.small import Eye, Killed, counts, everything, film, found, index, kill, opened


def test_another_backbone_rate_or_model_is_refused(videos: Path, library: Path, run_folder: Path) -> None:
    index(library, videos)
    other = Eye(replace(Eye().fingerprint, weights="9" * 64))
    film(videos / "new.mp4", "red")
    with pytest.raises(FingerprintMismatch, match=r"was made with .* \(there != here\): weights 000000000000… != 9999"):
        index(library, videos, eye=other)
    with pytest.raises(FingerprintMismatch, match="has 2 frames a second, not 1; leave out --rate"):
        index(library, videos, wanted=Wanted(rate=1.0))
    with pytest.raises(
        BadSetting, match=r"is searched with zero-shot, not zero-shot-clips; .* midreel reindex .* --model"
    ):
        index(library, videos, wanted=Wanted(model="zero-shot-clips"))
    with pytest.raises(
        FingerprintMismatch, match=r"was trained on other features .* --backbone local-dir:.* --rate 0.5"
    ):
        index(library, videos, wanted=Wanted(model=str(run_folder)))
    index(library, videos, wanted=Wanted(model="zero-shot", rate=2.0))


def test_a_library_that_is_refused_is_let_go_of(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    closed: list[str] = []
    monkeypatch.setattr(Catalogue, "close", lambda self: closed.append("catalogue") or self._file.close())
    with pytest.raises(FingerprintMismatch):
        index(library, videos, wanted=Wanted(rate=1.0))
    assert closed == ["catalogue"]


def test_a_trained_model_brings_its_backbone_and_its_rate(videos: Path, library: Path, run_folder: Path) -> None:
    with Writer.open(library, Wanted(model=str(run_folder))) as writer:
        assert writer.settings.rate == 0.5
        assert writer.settings.backbone.startswith("local-dir:")
        assert counts(indexer.index(writer, [videos])) == {"new": 3}
        assert writer.generation.card.model == str(run_folder)
    with Searcher.open(library) as searcher:
        assert len(searcher.search("a ball")) == 3


def test_a_model_that_does_not_say_where_its_backbone_is(
    videos: Path, library: Path, run_folder: Path, tiny_clip: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "model")
    card = json.loads((tmp_path / "model" / DATA).read_text())
    card["fingerprint"]["source"] = ""
    (tmp_path / "model" / DATA).write_text(json.dumps(card))
    wanted = Wanted(model=str(tmp_path / "model"))
    message = (
        r"model was trained on features of clip; .* \(SHA-256 of the weights \w{64}\), and does not say where that "
        r"backbone is; pass it: --backbone local-dir:FOLDER, or a hub id"
    )
    with pytest.raises(BadSetting, match=message), Writer.open(library, wanted):
        pass
    spec = f"local-dir:{tiny_clip}"
    with Writer.open(library, replace(wanted, backbone=spec)) as writer:
        assert writer.settings.rate == 0.5
        assert counts(indexer.index(writer, [videos])) == {"new": 3}
    with Writer.open(tmp_path / "another", wanted, backbone=load_backbone(spec)) as writer:
        assert writer.settings.backbone == spec


def test_a_backbone_that_reads_nothing(videos: Path, library: Path) -> None:
    with pytest.raises(BadSetting, match="reads no texts, expected a backbone that understands queries"):
        index(library, videos, eye=Eye(replace(Eye().fingerprint, word_width=None)))


def test_a_catalogue_that_is_lost_is_made_again_without_decoding(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    for path in library.glob("catalogue.sqlite*"):
        path.unlink()
    eye = Eye()
    assert counts(index(library, videos / "trip", eye=eye)) == {"new": 2}
    assert counts(index(library, videos, eye=eye)) == {"new": 1, "unchanged": 2}
    assert eye.num_images == 0
    assert everything(library) == before


def test_settings_that_are_lost_are_what_the_library_was_made_with(videos: Path, library: Path) -> None:
    index(library, videos, wanted=Wanted(model="zero-shot-clips", rate=1.0))
    before, lost = everything(library), Layout(library).settings()
    with opened(library) as writer, pytest.raises(Killed):
        reindex(writer, "zero-shot", kill)
    (library / "library.json").unlink()
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"unchanged": 3}
    assert eye.num_images == 0
    assert everything(library) == before
    assert Layout(library).settings() == replace(lost, backbone="eye")
    (library / "library.json").unlink()
    with pytest.raises(FingerprintMismatch, match="has 1 frames a second, not 2"):
        index(library, videos, wanted=Wanted(rate=2.0))


@pytest.mark.parametrize("name", ["features.h5", "annotations.jsonl", "film.mp4"])
def test_a_folder_of_something_else_becomes_no_library(videos: Path, library: Path, name: str) -> None:
    """The features of annotated videos lie in a file of the same name, and --forget would throw them out."""
    library.mkdir()
    (library / name).write_bytes(b"somebody else's")
    (library / ".hidden").touch()
    with pytest.raises(BadLibrary, match=rf"holds {name}, which is not of a library, expected a new folder; name anot"):
        index(library, videos)
    assert {path.name for path in library.iterdir()} == {name, ".hidden"}
    assert (library / name).read_bytes() == b"somebody else's"


def test_a_library_that_was_hardly_begun_is_begun_again(videos: Path, library: Path) -> None:
    library.mkdir()
    for name in ("writer.lock", "catalogue.sqlite.new", "catalogue.sqlite.new-wal"):
        (library / name).touch()
    assert counts(index(library, videos)) == {"new": 3}


def test_what_others_put_into_a_library_does_no_harm(videos: Path, library: Path) -> None:
    (library / "lost+found").mkdir(parents=True)
    assert counts(index(library, videos)) == {"new": 3}
    (library / "notes.txt").touch()
    (library / "library.json").unlink()
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_two_at_once(videos: Path, library: Path) -> None:
    index(library, videos)
    with opened(library), pytest.raises(LibraryBusy, match="is being written by process"):
        index(library, videos)
    with opened(library):
        assert len(found(library, "red")) == 3


FORBIDDEN = """
import os, sys
from pathlib import Path
from midreel.errors import MidreelError
from midreel.library.searcher import Searcher
from tests.library.small import Eye, index
os.setuid(65534)
library, videos = map(Path, sys.argv[1:])
with Searcher.open(library, backbone=Eye()) as searcher:
    print([hit.path.name for hit in searcher.search("red", top=1)])
try:
    index(library, videos)
except MidreelError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_library_that_may_not_be_written_is_searched(videos: Path, library: Path) -> None:
    index(library, videos)
    open_to_all = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others, and stay so
    try:
        copy = open_to_all / "library"
        shutil.copytree(library, copy)
        for path in (open_to_all, *open_to_all.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        run = subprocess.run(
            [sys.executable, "-c", FORBIDDEN, copy, open_to_all], capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        first, second = run.stdout.splitlines()
        assert first == "['sunset.mp4']"
        assert second.startswith(
            f"Unwritable {copy} cannot be written (Permission denied); it can be searched as it is"
        )
    finally:
        shutil.rmtree(open_to_all)
