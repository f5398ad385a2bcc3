import json
import os
import random
import shutil
import struct
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from midreel.datasets import dataset as extraction
from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset
from midreel.datasets.sources import Source
from midreel.errors import (
    BadLibrary,
    BadSetting,
    FingerprintMismatch,
    MissingLibrary,
    MissingTokens,
    UnreadableVideo,
)
from midreel.experiments import runs
from midreel.features import Backbone
from midreel.index.base import Match
from midreel.index.embedded import EmbeddedIndex
from midreel.library import indexer, pictures
from midreel.library.layout import Generation
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from midreel.training.data import FeatureSet
from tests.conftest import Command
from tests.library.small import COLOURS, Eye, Killed, film, index, opened
from tools.fuzz_videos import Outcome, in_child


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests must not change them."""
    folder = tmp_path_factory.mktemp("films")
    film(folder / "sunset.mp4", "grey", "grey", "red", "blue", "grey")
    film(folder / "trip/meadow.mp4", "grey", "green", "grey", "grey", "green")
    film(folder / "trip/sea.mp4", "blue", "grey")
    return folder


@pytest.fixture(scope="module")
def library(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests must not change it."""
    folder = tmp_path_factory.mktemp("search") / "library"
    index(folder, videos)
    return folder


@pytest.fixture
def searcher(library: Path) -> Searcher:
    return Searcher.open(library, backbone=Eye())


# ---------------------------------------------------------------- hits


def test_a_hit_has_the_video_and_the_moments(searcher: Searcher, videos: Path) -> None:
    hit = searcher.search("red")[0]
    assert (hit.path, hit.paths, hit.duration) == (videos / "sunset.mp4", (videos / "sunset.mp4",), 10.0)
    assert hit.score == pytest.approx(1, abs=0.02)
    assert set(hit.branch_scores) == {"clip", "frame"}
    assert hit.moments[0].start == pytest.approx(4, abs=0.6)
    assert hit.moments[0].end == pytest.approx(6, abs=0.6)
    assert list(hit.curve.times) == sorted(hit.curve.times)
    assert 3.7 <= hit.curve.times[int(np.argmax(hit.curve.values))] <= 6
    assert hit.video_id in searcher
    assert "nothing" not in searcher
    assert len(searcher) == 3


def test_two_events_are_two_moments(searcher: Searcher) -> None:
    moments = sorted(searcher.search("green", top=1)[0].moments, key=lambda moment: moment.start)
    assert [round(moment.start) for moment in moments] == [2, 8]
    assert [round(moment.end) for moment in moments] == [4, 10]


def test_a_batch_of_queries_gives_the_same_as_single_queries(searcher: Searcher) -> None:
    queries = ["red", "green", "blue and green"]
    assert searcher.search_all(queries, top=2) == [searcher.search(query, top=2) for query in queries]
    assert searcher.search_all([]) == []


def test_exact_search_gives_the_same_ranking(searcher: Searcher) -> None:
    for query in ("red", "green", "blue"):
        assert [hit.video_id for hit in searcher.search(query, exact=True)] == [
            hit.video_id for hit in searcher.search(query)
        ]


def test_filters(searcher: Searcher, videos: Path) -> None:
    def names(*where: str) -> list[str]:
        return sorted(hit.path.name for hit in searcher.search("red", where=where))

    assert names(f"folder={videos / 'trip'}") == ["meadow.mp4", "sea.mp4"]
    assert names("shorter=5") == ["sea.mp4"]
    assert names("longer=5", f"folder={videos / 'trip'}") == ["meadow.mp4"]
    assert names("after=1d") == ["meadow.mp4", "sea.mp4", "sunset.mp4"]
    assert names("before=2020") == names("tag=none") == []


def test_invalid_queries(searcher: Searcher) -> None:
    with pytest.raises(BadSetting, match="' '"):
        searcher.search(" ")
    with pytest.raises(BadSetting, match="top is 0"):
        searcher.search("red", top=0)
    for ask in (searcher.search, lambda query: searcher.encode([query])):
        with pytest.raises(BadSetting, match="UTF-8"):
            ask("\udce9t\udce9")  # Latin-1 bytes of a command line


def test_a_long_query_is_truncated(videos: Path, tmp_path: Path, run_folder: Path) -> None:
    with Writer.open(tmp_path / "library", Wanted(model=str(run_folder))) as writer:
        indexer.index(writer, [videos])
    with Searcher.open(tmp_path / "library") as trained:
        assert len(trained.search("a ball and " * 50)) == 3


# ---------------------------------------------------------------- like


def test_like_a_moment_of_a_video_in_the_library(searcher: Searcher, videos: Path) -> None:
    hits = searcher.search_like(videos / "sunset.mp4", 7.0)
    assert hits[0].path.name == "sea.mp4"
    assert "sunset.mp4" not in [hit.path.name for hit in hits]
    assert hits[0].moments[0].start < 1
    with pytest.raises(BadSetting, match=r"10\.0 s"):
        searcher.search_like(videos / "sunset.mp4", 11.0)


def test_like_an_image(searcher: Searcher, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), COLOURS["green"]).save(tmp_path / "grass.png")
    hit = searcher.search_like(tmp_path / "grass.png")[0]
    assert (hit.path.name, hit.score) == ("meadow.mp4", pytest.approx(1, abs=0.02))


def test_like_a_moment_of_another_video(searcher: Searcher, tmp_path: Path) -> None:
    other = film(tmp_path / "other.mp4", "grey", "red")
    assert searcher.search_like(other, 3.0)[0].path.name == "sunset.mp4"


def test_like_a_file_that_is_not_an_image(searcher: Searcher, videos: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableVideo, match="VIDEO@TIME"):
        searcher.search_like(videos / "sunset.mp4")
    with pytest.raises(UnreadableVideo, match=r"none\.png"):
        searcher.search_like(tmp_path / "none.png")


def test_like_an_image_that_is_too_large(searcher: Searcher, tmp_path: Path) -> None:
    """The header is enough to refuse it."""
    Image.new("RGB", (3, 2)).save(tmp_path / "bomb.png")
    data = bytearray((tmp_path / "bomb.png").read_bytes())
    data[16:24] = struct.pack(">II", 10_000, 9_999)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (tmp_path / "bomb.png").write_bytes(data)
    with pytest.raises(UnreadableVideo, match="pixels"):
        searcher.search_like(tmp_path / "bomb.png")


def test_a_fifo_is_not_read_as_an_image(tmp_path: Path) -> None:
    """In a child process, because opening a FIFO may block."""
    os.mkfifo(tmp_path / "fifo.png")
    outcome, _ = in_child(
        lambda: Outcome(kind=str(pictures.read_image(tmp_path / "fifo.png"))), seconds=10.0, memory=2**28
    )
    assert outcome.kind == "UnreadableVideo"


def test_no_program_is_started_for_an_image(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would start Ghostscript for EPS."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # to be looked for
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\necho $0 > {tmp_path / 'started'}\n")
    program.chmod(0o755)
    image = tmp_path / "image.png"
    image.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n")
    with pytest.raises(UnreadableVideo):
        searcher.search_like(image)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("form", pictures.FORMATS)
def test_damaged_images_are_unreadable(tmp_path: Path, form: str) -> None:
    """Whatever exception Pillow raises."""
    path, chance = tmp_path / "image", random.Random(0)
    Image.effect_noise((40, 30), 50).convert("RGB").save(path, form)
    data = path.read_bytes()
    assert pictures.read_image(path).shape == (30, 40, 3)
    for _ in range(40):
        damaged = bytearray(data[: chance.randrange(len(data) // 2, len(data))])
        damaged[chance.randrange(min(len(damaged), 400))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with suppress(UnreadableVideo):
            pictures.read_image(path)


def test_like_with_a_trained_method(videos: Path, tmp_path: Path, run_folder: Path) -> None:
    """Its queries are words, so an image is encoded as a video."""
    with Writer.open(tmp_path / "library", Wanted(model=str(run_folder))) as writer:
        indexer.index(writer, [videos])
    Image.new("RGB", (30, 20), COLOURS["blue"]).save(tmp_path / "blue.png")
    with Searcher.open(tmp_path / "library") as trained:
        assert len(trained.search_like(tmp_path / "blue.png")) == 3
        assert len(trained.search_like(videos / "sunset.mp4", 7.0)) == 2


# ---------------------------------------------------------------- change


def test_create_add_and_remove(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midreel.library.writer.load_backbone", lambda *_: Eye())
    with Searcher.create(tmp_path / "library") as searcher:
        assert (len(searcher), searcher.search("red")) == (0, [])
        assert len(searcher.add(videos / "trip").new) == 2
        assert len(searcher.add(videos / "sunset.mp4", tags=["evening"]).new) == 1
        (hit,) = searcher.search("red", where=["tag=evening"])
        searcher.remove(hit.video_id)
        assert len(searcher) == 2
        assert hit.video_id not in [other.video_id for other in searcher.search("red")]
        with pytest.raises(MissingTokens):
            searcher.remove(hit.video_id)
    with pytest.raises(BadLibrary, match=r"Searcher\.open"):
        Searcher.create(tmp_path / "library")


def test_a_kill_while_a_video_is_removed(videos: Path, tmp_path: Path) -> None:
    """A search returns exactly the videos that the catalogue lists."""
    library = tmp_path / "library"
    index(library, videos)
    with Searcher.open(library, backbone=Eye()) as searcher:
        listed = {hit.video_id for hit in searcher.search("red")}
        for step in ("catalogue.Catalogue.forget_videos", "tokens.EmbeddedIndex.remove"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(f"midreel.library.{step}", killed)
                with pytest.raises(Killed):
                    searcher.remove(min(listed))
            found = {hit.video_id for hit in searcher.search("red", top=3)}
            assert len(found) == len(searcher) == (3 if "catalogue" in step else 2)
            assert all(video_id in searcher for video_id in found)
            assert searcher.unsearchable() == []


def killed(*_: object) -> None:
    raise Killed


def test_a_searcher_sees_new_commits(videos: Path, tmp_path: Path) -> None:
    index(tmp_path / "library", videos / "trip")
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:
        assert len(searcher.search("red")) == 2
        index(tmp_path / "library", videos / "sunset.mp4")
        assert searcher.search("red")[0].path.name == "sunset.mp4"


@pytest.mark.parametrize("when", ["before the index is opened", "while it is searched"])
def test_a_search_is_repeated_if_the_generation_changes(
    videos: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path / "library", videos)
    overtaken: list[bool] = []

    def overtake() -> None:
        if not overtaken:
            overtaken.append(True)
            with opened(tmp_path / "library") as writer:
                reindex(writer, "zero-shot-clips")

    def opening(generation: Generation, *, read_only: bool) -> EmbeddedIndex:
        overtake() if read_only else None
        return EmbeddedIndex.open(generation.index, read_only=read_only)

    def searching(self: EmbeddedIndex, *given: Any, **options: Any) -> list[list[Match]]:
        if overtaken:
            return really(self, *given, **options)
        overtake()
        return [[]]  # the files of the index are being deleted

    really = EmbeddedIndex.search
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:
        if when == "while it is searched":
            monkeypatch.setattr(EmbeddedIndex, "search", searching)
        else:
            monkeypatch.setattr("midreel.library.tokens.open_index", opening)
        assert len(searcher.search("red")) == 3
        assert (overtaken, searcher.generation.name) == ([True], "2")


def test_the_path_of_a_hit_is_allowed_and_exists(videos: Path, tmp_path: Path) -> None:
    for name in ("a/x.mp4", "b/y.mp4", "b/z.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(videos / "sunset.mp4", tmp_path / name)
    index(tmp_path / "library", tmp_path / "a", tmp_path / "b")
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:

        def shown(*where: str) -> str:
            (hit,) = searcher.search("red", where=where)
            assert len(hit.paths) == 3
            return hit.path.name

        assert (shown(), shown(f"folder={tmp_path / 'b'}")) == ("x.mp4", "y.mp4")
        (tmp_path / "b/y.mp4").unlink()
        assert shown(f"folder={tmp_path / 'b'}") == "z.mp4"
        shutil.rmtree(tmp_path / "a")
        assert shown() == "z.mp4"
        shutil.rmtree(tmp_path / "b")
        assert shown() == "x.mp4"  # none exists


def test_an_image_is_rotated_by_its_exif_data(tmp_path: Path) -> None:
    image, tags = Image.new("RGB", (40, 20), "red"), Image.Exif()
    tags[0x0112] = 6  # rotate by 90 degrees
    image.save(tmp_path / "photo.jpg", exif=tags)
    assert pictures.read_image(tmp_path / "photo.jpg").shape == (40, 20, 3)


def test_tokens_without_a_row_are_not_returned_and_leave_no_gap(videos: Path, tmp_path: Path) -> None:
    """The state between two steps of a commit."""
    index(tmp_path / "library", videos)
    with opened(tmp_path / "library") as writer:
        red = writer.catalogue.video_at(videos / "sunset.mp4")
        assert red is not None
        writer.catalogue.forget_videos([red.id])
        assert red.id in writer.index
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:
        assert len(searcher.search("red", top=1)) == 1
        assert len(searcher.search("red", top=3)) == 2


def test_a_changed_backbone_is_refused(library: Path) -> None:
    other = Eye(replace(Eye().fingerprint, weights="9" * 64))
    with pytest.raises(FingerprintMismatch, match="weights"):
        Searcher.open(library, backbone=other).search("red")


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(MissingLibrary, match=str(tmp_path)):
        Searcher.open(tmp_path)


def test_a_searcher_follows_a_replaced_library(library: Path, videos: Path, tmp_path: Path) -> None:
    """Both generations have the same name, so only the catalogue shows the change."""
    served, other = tmp_path / "library", tmp_path / "other"
    shutil.copytree(library, served)
    index(other, videos / "trip")
    with Searcher.open(served, backbone=Eye()) as searcher:
        assert len(searcher.search("red")) == 3
        shutil.rmtree(served)
        other.rename(served)
        assert {hit.path.name for hit in searcher.search("red")} == {"meadow.mp4", "sea.mp4"}


def test_a_searcher_sees_removals_from_a_restored_library(library: Path, tmp_path: Path) -> None:
    served = tmp_path / "library"
    shutil.copytree(library, served)
    with Searcher.open(served, backbone=Eye()) as searcher:
        first, *others = [hit.video_id for hit in searcher.search("red")]
        shutil.rmtree(served)
        shutil.copytree(library, served)
        searcher.remove(first)
        assert [hit.video_id for hit in searcher.search("red")] == others


def test_a_deleted_library_is_not_created_again(library: Path, videos: Path, tmp_path: Path) -> None:
    """Its disk may be unmounted. An empty library in its place would hide that."""
    served = tmp_path / "library"
    shutil.copytree(library, served)
    with Searcher.open(served, backbone=Eye()) as searcher:
        [hit] = searcher.search("red", top=1)
        shutil.rmtree(served)
        for act in (
            lambda: searcher.search("red"),
            lambda: searcher.add(videos),
            lambda: searcher.remove(hit.video_id),
        ):
            with pytest.raises(MissingLibrary):
                act()
        assert not served.exists()


# ---------------------------------------------------------------- the one score


@pytest.mark.parametrize("model", ["zero-shot", "zero-shot-clips", "trained"])
def test_exact_search_and_evaluate_rank_alike(
    tmp_path: Path, tiny_clip: Path, backbone: Backbone, run_folder: Path, model: str
) -> None:
    """The same files as a dataset and as a library. Each video is short enough for one window."""
    root = tmp_path / "playhouse"
    playhouse.write_dataset(root, seed=4, num_test=5, size=(48, 36), rate=4)
    extraction.extract(Source.find(root), backbone, rate=0.5)
    benchmark = Dataset.open(root)
    name = str(run_folder) if model == "trained" else model
    method = runs.load(name, benchmark)
    data = FeatureSet.of(method, benchmark, "test")
    expected = runs.examine(method, data, keep_scores=True).report

    spec = f"local-dir:{tiny_clip}"
    with Writer.open(tmp_path / "library", Wanted(model=name, backbone=spec, rate=0.5)) as writer:
        indexer.index(writer, [root])
    with Searcher.open(tmp_path / "library") as searcher:
        found = searcher.search_all([query.text for query in data.queries], top=99, exact=True)
        windowing = searcher.generation.card.windows
        assert all(len(windowing.windows(video.num_frames)) == 1 for video in searcher._catalogue.videos())
    assert expected.scores is not None
    for hits, scores in zip(found, expected.scores, strict=True):
        here = torch.tensor([scores[data.video_ids.index(hit.path.stem)] for hit in hits])
        assert len(hits) == len(scores)
        torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), here, atol=4e-3, rtol=0)
        assert (here.diff() <= 4e-3).all()  # the error of eight-bit vectors


# ---------------------------------------------------------------- the commands


def test_the_commands(midreel: Command, videos: Path, tmp_path: Path, tiny_clip: Path) -> None:
    copy, library = tmp_path / "my films", tmp_path / "library"
    shutil.copytree(videos, copy)
    (copy / "notes.mp4").write_text("no video")
    ended = midreel("index", copy, "--library", library, "--backbone", f"local-dir:{tiny_clip}", "--tag", "mine")
    assert ended.code == 3
    assert "quarantined" in ended.out
    assert "3 new, 0 removed, 0 unchanged, 1 quarantined; " in ended.out
    ended = midreel("index", "--library", library, "--json")
    assert (ended.code, json.loads(ended.out)["unchanged"]) == (3, 3)

    ended = midreel("search", library, "a red ball", "-n", 2, "--threshold", 0)
    assert (ended.code, len(ended.out.splitlines())) == (0, 3)
    ended = midreel("search", library, "a red ball", "-n", 2, "--threshold", 1)
    assert (ended.code, len(ended.out.splitlines())) == (0, 4)
    assert "no confident match" in ended.out.splitlines()[1]
    (result,) = json.loads(midreel("search", library, "a red ball", "--threshold", 1, "--json").out)["results"]
    assert (result["confident"], result["threshold"]) == (False, 1)
    assert all(0 <= hit["confidence"] < 1 for hit in result["hits"])
    assert midreel("search", library, "a red ball", "--threshold", 1.5).code == 2
    ended = midreel(
        "search", library, "a red ball", "--json", "--exact", "--filter", "shorter=5", "--filter", "tag=mine"
    )
    (result,) = json.loads(ended.out)["results"]
    assert (result["query"], [Path(hit["path"]).name for hit in result["hits"]]) == ("a red ball", ["sea.mp4"])
    assert set(result["hits"][0]) >= {"video_id", "score", "moments", "curve", "branch_scores", "duration"}
    nowhere = ("--filter", "folder=/nope", "--filter", "tag=mine")
    ended = midreel("search", library, "a red ball", *nowhere)
    assert (ended.code, ".mp4" in ended.out, "folder=/nope tag=mine" in ended.err) == (0, False, True)
    ended = midreel("export", library, "a red ball", tmp_path / "found.csv", *nowhere)
    assert (ended.code, "folder=/nope tag=mine" in ended.err) == (1, True)
    (tmp_path / "queries.txt").write_text("red\nall\n")
    ended = midreel("search", library, "--queries", tmp_path / "queries.txt", "--json")
    assert [result["query"] for result in json.loads(ended.out)["results"]] == ["red", "all"]
    ended = midreel("search", library, "--like", f"{copy / 'sunset.mp4'}@0:05")
    assert (ended.code, len(ended.out.splitlines())) == (0, 3)
    assert (
        midreel("search", library, "a", "red", "ball", "--json").out
        == midreel("search", library, "a red ball", "--json").out
    )
    ended = midreel("search", "a red ball", library)
    assert (ended.code, "LIBRARY QUERY" in ended.err) == (1, True)
    ended = midreel("search", copy, "a red ball")
    assert (ended.code, f"{library}?" in ended.err) == (1, True)
    ended = midreel("index", copy, "--library", copy)
    assert (ended.code, f"--library {copy}-library" in ended.err) == (1, True)
    assert not (copy / "library.json").exists()
    ended = midreel("search", library, "red", "--like", "x.png")
    assert (ended.code, "x.png" in ended.err) == (1, True)
    (tmp_path / "queries.txt").write_text("red AND blue\nred\n")
    moment = f"{copy / 'sunset.mp4'}@0:05"
    for words in ([], ["--like", moment]):
        ended = midreel("search", library, "--queries", tmp_path / "queries.txt", *words, "--json")
        first, second = json.loads(ended.out)["results"]
        assert [each["part"][-4:].strip() for each in first["hits"][0]["moments"][:2]] == ["red", "blue"]
        assert "part" not in second["hits"][0]["moments"][0]
        assert (second["query"], len(second["hits"])) == (f"{moment} + red" if words else "red", 2 if words else 3)
    ended = midreel("search", library, "red", "THEN", "--json")
    assert (ended.code, "'red THEN'" in ended.err) == (1, True)
    assert midreel("export", library, "red THEN blue", tmp_path / "found.csv", "-n", 1, "--moments", 3).code == 0
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 4

    (path,) = library.glob("generations/*/index/*.tokens1")
    with path.open("r+b") as file:
        file.write(b"damaged")
    ended = midreel("search", library, "a red ball", "--exact", "--json")
    assert (ended.code, len(json.loads(ended.out)["results"][0]["hits"])) == (3, 2)
    (lost,) = json.loads(ended.out)["unsearchable"]
    assert lost in ended.err
    assert f"midreel index --library {library} --retry" in ended.err
    assert midreel("index", "--library", library, "--retry").out.splitlines()[-1].startswith("0 new, 1 repaired")
    assert midreel("search", library, "a red ball", "--exact").code == 0

    ended = midreel("info", library)
    assert f"{library}: 3 videos in 3 files, 0.01 hours" in ended.out
    assert "model: zero-shot (generation 1)" in ended.out
    assert "tag: mine, 3 videos" in ended.out
    assert f"quarantined {copy / 'notes.mp4'}: " in ended.out
    ended = midreel("reindex", library, "--model", "zero-shot-clips")
    assert "zero-shot-clips" in ended.out
    assert json.loads(midreel("info", library, "--json").out)["generation"] == "2"
    ended = midreel("reindex", tmp_path / "nothing")
    assert (ended.code, str(tmp_path / "nothing") in ended.err, (tmp_path / "nothing").exists()) == (1, True, False)


def test_a_query_that_is_too_long_for_a_file_name(midreel: Command, library: Path) -> None:
    assert "no backbone 'eye'" in midreel("search", library, "a red ball " * 40).err  # the library was opened
    ended = midreel("search", "a red ball " * 40, library)
    assert (ended.code, "LIBRARY QUERY" in ended.err) == (1, True)


def test_index_without_a_path_creates_no_library(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("index", "--library", tmp_path / "library")
    assert (ended.code, "midreel index VIDEOS" in ended.err) == (1, True)
    assert not (tmp_path / "library").exists()


def test_index_with_a_missing_path_creates_no_library(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("index", tmp_path / "nothing", "--library", tmp_path / "library")
    assert (ended.code, str(tmp_path / "nothing") in ended.err) == (1, True)
    assert "--forget" not in ended.err  # there is nothing to remove from a new library
    assert not (tmp_path / "library").exists()


def test_index_with_an_unknown_backbone_creates_no_library(midreel: Command, videos: Path, tmp_path: Path) -> None:
    ended = midreel("index", videos, "--library", tmp_path / "library", "--backbone", "tinyclip")
    assert (ended.code, "did you mean 'tiny-clip'?" in ended.err) == (1, True)
    assert not (tmp_path / "library").exists()


def test_index_with_a_fifo_or_device(midreel: Command, videos: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.mp4")
    library = tmp_path / "library"
    for special in (tmp_path / "fifo.mp4", "/dev/zero"):
        ended = midreel("index", special, "--library", library)
        assert (ended.code, str(special) in ended.err, library.exists()) == (1, True, False)
    ended = midreel("index", videos / "trip", tmp_path / "fifo.mp4", "--library", library)
    assert (ended.code, "fifo.mp4" in ended.out, "2 new" in ended.out) == (3, True, True)
    assert midreel("index", "--library", library).code == 0  # the FIFO was not remembered


def test_the_default_backbone_prints_a_warning(midreel: Command, videos: Path, tmp_path: Path) -> None:
    ended = midreel("index", videos / "trip", "--library", tmp_path / "library")
    assert "tiny-clip" in ended.err
    assert "tiny-clip" not in midreel("index", videos / "trip", "--library", tmp_path / "library").err


def test_many_queries_find_what_each_finds(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = ["red", "green", "blue", "red and blue"]
    expected = [searcher.search(query, top=2) for query in queries]
    monkeypatch.setattr("midreel.library.searcher._MATCHES_AT_ONCE", 3)
    found = searcher.search_all(queries, top=2)
    assert [[hit.video_id for hit in hits] for hits in found] == [[hit.video_id for hit in hits] for hits in expected]
    for hits, alone in zip(found, expected, strict=True):
        for hit, twin in zip(hits, alone, strict=True):
            assert hit.curve.values == pytest.approx(twin.curve.values, abs=1e-6)


def test_like_a_moment_needs_a_number_of_hits(searcher: Searcher, videos: Path) -> None:
    with pytest.raises(BadSetting, match="top is 0"):
        searcher.search_like(videos / "sunset.mp4", 1.0, top=0)
