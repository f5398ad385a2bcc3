"""Open a library for writing: create it, recover it, and refuse other settings."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from midreel.errors import BadLibrary, BadSetting, FingerprintMismatch, Locked, MidreelError
from midreel.features.backbones.base import SHIPPED, load_backbone
from midreel.library import indexer
from midreel.library.catalogue import Catalogue
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from midreel.methods.model_files import DATA
from tests.library.small import Eye, Killed, counts, everything, film, found, index, kill, opened


def test_another_backbone_rate_or_model_is_refused(videos: Path, library: Path, run_folder: Path) -> None:
    index(library, videos)
    other = Eye(replace(Eye().fingerprint, weights="9" * 64))
    film(videos / "new.mp4", "red")
    with pytest.raises(FingerprintMismatch, match="weights"):
        index(library, videos, eye=other)
    with pytest.raises(FingerprintMismatch, match="--rate"):
        index(library, videos, wanted=Wanted(rate=1.0))
    with pytest.raises(BadSetting, match="midreel reindex"):
        index(library, videos, wanted=Wanted(model="zero-shot-clips"))
    with pytest.raises(FingerprintMismatch, match=r"--rate 0\.5"):
        index(library, videos, wanted=Wanted(model=str(run_folder)))
    index(library, videos, wanted=Wanted(model="zero-shot", rate=2.0))


def test_a_refused_library_is_closed(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    closed: list[str] = []
    monkeypatch.setattr(Catalogue, "close", lambda self: closed.append("catalogue") or self._file.close())
    with pytest.raises(FingerprintMismatch):
        index(library, videos, wanted=Wanted(rate=1.0))
    assert closed == ["catalogue"]


def test_a_trained_model_sets_the_backbone_and_the_rate(videos: Path, library: Path, run_folder: Path) -> None:
    with Writer.open(library, Wanted(model=str(run_folder))) as writer:
        assert writer.settings.rate == 0.5
        assert writer.settings.backbone.startswith("local-dir:")
        assert counts(indexer.index(writer, [videos])) == {"new": 3}
        assert writer.generation.card.model == str(run_folder)
    with Searcher.open(library) as searcher:
        assert len(searcher.search("a ball")) == 3


def test_a_model_without_the_source_of_its_backbone(
    videos: Path, library: Path, run_folder: Path, tiny_clip: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "model")
    card = json.loads((tmp_path / "model" / DATA).read_text())
    card["fingerprint"]["source"] = ""
    (tmp_path / "model" / DATA).write_text(json.dumps(card))
    wanted = Wanted(model=str(tmp_path / "model"))
    with pytest.raises(BadSetting, match="--backbone"), Writer.open(library, wanted):
        pass
    spec = f"local-dir:{tiny_clip}"
    with Writer.open(library, replace(wanted, backbone=spec)) as writer:
        assert writer.settings.rate == 0.5
        assert counts(indexer.index(writer, [videos])) == {"new": 3}
    with Writer.open(tmp_path / "another", wanted, backbone=load_backbone(spec)) as writer:
        assert writer.settings.backbone == spec


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(backbone="tinyclip"),
        Wanted(backbone="owner/name"),
        Wanted(backbone="local-dir:nowhere"),
        Wanted(model="nowhere"),
        Wanted(rate=0.0),
        Wanted(rate=1e4),
    ],
)
@pytest.mark.parametrize("has_folder", [False, True])
def test_a_failed_creation_leaves_nothing(
    library: Path, wanted: Wanted, has_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if has_folder:
        library.mkdir()
    with pytest.raises(MidreelError), Writer.open(library, wanted):
        pass
    assert library.exists() == has_folder
    assert not has_folder or not list(library.iterdir())


def test_backbones_are_compared_by_name_before_they_are_loaded(
    videos: Path, library: Path, tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer.open(library, Wanted(backbone="tiny-clip")):
        pass
    with (
        pytest.raises(FingerprintMismatch, match="weights"),
        Writer.open(library, Wanted(backbone=f"local-dir:{tiny_clip}")),
    ):
        pass
    copy = shutil.copytree(SHIPPED["tiny-clip"], tmp_path / "copy")
    with Writer.open(library, Wanted(backbone=f"local-dir:{copy}")):
        pass

    def load(spec: str, _: str) -> None:
        pytest.fail(f"loads {spec}")

    monkeypatch.setattr("midreel.library.writer.load_backbone", load)
    with (
        pytest.raises(FingerprintMismatch, match=r"owner/name.* tiny-clip"),
        Writer.open(library, Wanted(backbone="owner/name")),
    ):
        pass
    with Writer.open(library, Wanted(backbone="tiny-clip")):
        pass


def test_a_backbone_without_texts_is_refused(videos: Path, library: Path) -> None:
    with pytest.raises(BadSetting, match="text"):
        index(library, videos, eye=Eye(replace(Eye().fingerprint, word_width=None)))


def test_a_lost_catalogue_is_rebuilt_without_decoding(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    for path in library.glob("catalogue.sqlite*"):
        path.unlink()
    eye = Eye()
    assert counts(index(library, videos / "trip", eye=eye)) == {"new": 2}
    assert counts(index(library, videos, eye=eye)) == {"new": 1, "unchanged": 2}
    assert eye.num_images == 0
    assert everything(library) == before


def test_lost_settings_are_recovered(videos: Path, library: Path) -> None:
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
    with pytest.raises(FingerprintMismatch, match="--rate"):
        index(library, videos, wanted=Wanted(rate=2.0))


@pytest.mark.parametrize("name", ["features.h5", "annotations.jsonl", "film.mp4"])
def test_a_folder_with_other_files_is_refused(videos: Path, library: Path, name: str) -> None:
    """A dataset also has a features.h5, which --forget would empty."""
    library.mkdir()
    (library / name).write_bytes(b"somebody else's")
    (library / ".hidden").touch()
    with pytest.raises(BadLibrary, match=name):
        index(library, videos)
    assert {path.name for path in library.iterdir()} == {name, ".hidden"}
    assert (library / name).read_bytes() == b"somebody else's"


def test_an_interrupted_creation_is_repeated(videos: Path, library: Path) -> None:
    library.mkdir()
    for name in ("writer.lock", "catalogue.sqlite.new", "catalogue.sqlite.new-wal"):
        (library / name).touch()
    assert counts(index(library, videos)) == {"new": 3}


@pytest.mark.parametrize(
    "step",
    [
        "features.stores.store.FeatureStore.resume",
        "library.layout.Layout.begin_generation",
        "library.tokens.create_index",
        "library.layout.Layout.write",
    ],
)
def test_a_kill_during_creation_is_harmless(
    videos: Path, library: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(f"midreel.{step}", killed)
        with pytest.raises(Killed):
            index(library, videos)
    assert counts(index(library, videos)) == {"new": 3}
    assert found(library, "red", top=1) == ["sunset.mp4"]


def test_other_files_in_a_library_are_ignored(videos: Path, library: Path) -> None:
    (library / "lost+found").mkdir(parents=True)
    assert counts(index(library, videos)) == {"new": 3}
    (library / "notes.txt").touch()
    (library / "library.json").unlink()
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_a_second_writer_is_refused(videos: Path, library: Path) -> None:
    index(library, videos)
    with opened(library), pytest.raises(Locked, match=str(os.getpid())):
        index(library, videos)
    with opened(library):
        assert len(found(library, "red")) == 3


# All modules are imported before the user changes, who may not be allowed to read them.
READ_ONLY = """
import os, sys
from pathlib import Path
import midreel.methods.encoder
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_library_can_be_searched(videos: Path, library: Path) -> None:
    index(library, videos)
    open_to_all = Path(tempfile.mkdtemp())  # other users cannot read pytest's folders
    try:
        copy = open_to_all / "library"
        shutil.copytree(library, copy)
        for path in (open_to_all, *open_to_all.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        run = subprocess.run(
            [sys.executable, "-c", READ_ONLY, copy, open_to_all], capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        first, second = run.stdout.splitlines()
        assert first == "['sunset.mp4']"
        assert second.startswith(f"Unwritable {copy} ")
        assert "Permission denied" in second
    finally:
        shutil.rmtree(open_to_all)
