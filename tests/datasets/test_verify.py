import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from midreel.datasets import open_annotations, own, playhouse
from midreel.datasets.annotations import Annotations
from midreel.datasets.verify import NUM_EXAMPLES, check_features, survey, verify_dataset
from midreel.errors import BadFeatures, UnknownName
from midreel.features.extract import extract_texts
from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import UNKNOWN
from midreel.features.stores.store import FeatureStore
from midreel.types import Moment, Query, Split, TextFeatures, VideoFeatures
from tests.conftest import Command
from tests.datasets import trees
from tests.datasets.real import real_file
from tests.features.fakes import FINGERPRINT, FakeBackbone


def made(name: str, **counts: tuple[int, int]) -> Annotations:
    """Return a dataset with these numbers of videos and queries in each split. No video is in two splits."""
    splits = {}
    for split, (num_videos, num_queries) in counts.items():
        videos = tuple(f"{split}{k}" for k in range(num_videos))
        queries = tuple(
            Query(id=f"{split}#{k}", text="a dog jumps", video_id=videos[k % num_videos]) for k in range(num_queries)
        )
        splits[split] = Split(video_ids=videos, queries=queries)
    return Annotations(name=name, layout="release", folder=Path("data"), files=(), splits=splits)


# ---------------------------------------------------------------- the whole dataset


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Two annotated videos with features of 30 s and 20 s."""
    lines = ["beach.mp4,a dog jumps,3.5,12,val", "pool.mp4,a cat,1,20.6,train"]
    (tmp_path / "annotations.csv").write_text("\n".join(["video,query,start,end,split", *lines]))
    for name in ("beach.mp4", "pool.mp4"):
        (tmp_path / name).touch()
    with FeatureStore.create(tmp_path / "features.h5", FINGERPRINT) as store:
        for name, seconds in (("beach.mp4", 30), ("pool.mp4", 20)):
            times = np.arange(float(seconds), dtype=np.float32)
            store.add_video(
                name, VideoFeatures(frames=np.ones((seconds, 4), np.float32), times=times, duration=float(seconds))
            )
        extract_texts([("2", "a dog jumps"), ("3", "a cat")], FakeBackbone(), store)
    return tmp_path


def test_features_provide_missing_durations(clips: Path) -> None:
    found = verify_dataset(open_annotations(clips))
    assert found.ok
    assert {name: split.seconds for name, split in found.survey.splits.items()} == {"train": 20.0, "val": 30.0}
    (clips / "features.h5").unlink()
    without = verify_dataset(open_annotations(clips))
    assert {split.seconds for split in without.survey.splits.values()} == {None}


def test_a_moment_after_the_end_of_its_video_is_a_problem(midreel: Command, clips: Path) -> None:
    path = clips / "annotations.csv"
    path.write_text(path.read_text().replace("20.6", "21.5"))
    ended = midreel("data", "verify", clips)
    line = "moments that end after their video: 1, such as query '3': 1 to 21.5 s in pool.mp4, which lasts 20.0 s"
    assert ended.code == 3
    assert f"problem: {line}" in ended.out.splitlines()
    rows = ended.out.splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["split", "train", "val"]
    assert [row.split()[-1] for row in rows] == ["seconds/video", "20.0", "30.0"]
    (found,) = json.loads(midreel("data", "verify", clips, "--json").out)["datasets"]
    assert found["problems"] == [line]
    assert set(found["features"]) == {"videos", "queries", "stranded", "changed", "stretched", "ok"}


def test_an_unknown_name_of_features_is_an_error(midreel: Command, tmp_path: Path) -> None:
    trees.write_captions(tmp_path, "tvr", trees.TVR)
    with pytest.raises(UnknownName, match="clip_b32, clip_l14"):
        verify_dataset(open_annotations(tmp_path), "clip_l41")
    ended = midreel("data", "verify", tmp_path, "--features", "clip_l41")
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean 'clip_l14'?" in ended.err


def test_a_release_with_an_unknown_name_is_counted(tmp_path: Path) -> None:
    """midreel knows no features of such a dataset, but its captions are fine."""
    trees.write_captions(tmp_path, "cooking", trees.CHARADES)
    found = verify_dataset(open_annotations(tmp_path))
    assert (found.features, found.ok) == (None, False)
    assert "'cooking'" in found.remark
    assert found.survey.splits["train"].queries == 2


# ---------------------------------------------------------------- counts


def test_exact_counts_of_a_benchmark() -> None:
    found = survey(made("qvhighlights", train=(2214, 7218), val=(474, 1550)))
    assert found.problems == found.remarks == ()
    assert found.to_text().splitlines() == [
        "qvhighlights in data, from the captions of a release",
        "split  videos  queries  with moments  moments  words/query  seconds/video",
        "train   2,214    7,218             0        0          3.0        unknown",
        "val       474    1,550             0        0          3.0        unknown",
        "train is QVHighlights by YouTube video, train (2,214 videos, 7,218 queries)",
        "val is QVHighlights by YouTube video, val (474 videos, 1,550 queries)",
    ]


def test_different_counts_are_a_problem() -> None:
    found = survey(made("tvr", val=(2177, 10896)))
    (problem,) = found.problems
    assert "2 fewer videos and 1 more queries" in problem
    assert "TVR, val (2,179 videos, 10,895 queries)" in problem
    assert found.to_text().splitlines()[-1] == f"problem: {found.problems[0]}"


def test_moments_words_and_seconds(tmp_path: Path) -> None:
    trees.write_qvhighlights(tmp_path)
    found = survey(open_annotations(tmp_path))
    train = found.splits["train"]
    assert (train.videos, train.queries, train.located, train.moments, train.timed) == (2, 4, 4, 5, 2)
    assert (train.words, train.seconds) == (3.0, (276 + 150) / 2)
    test = found.splits["test"]
    assert (test.queries, test.located, test.moments) == (1, 0, 0)
    as_json = json.loads(json.dumps(found.to_dict()))
    assert as_json["splits"]["train"]["variant"]["videos"] == 2214
    assert as_json["splits"]["train"]["exact"] is False
    assert as_json["problems"] == list(found.problems)


def test_videos_of_two_splits(tmp_path: Path) -> None:
    """val and test may share videos, but neither may share videos with train."""
    train, val = trees.CHARADES["train"], trees.CHARADES["test"]
    trees.write_captions(tmp_path, "cooking", {"train": [*train, *val], "val": val, "test": val})
    found = survey(open_annotations(tmp_path))
    assert found.remarks == ("videos in both val and test: 1, such as 3MSZA",)
    assert found.problems == (
        "videos in both train and val: 1, such as 3MSZA",
        "videos in both train and test: 1, such as 3MSZA",
    )


def test_one_id_for_two_sentences_is_a_problem(tmp_path: Path) -> None:
    """Features are stored by id, so both would have the same."""
    for split, text in (("val", "a dog"), ("test", "a cat")):
        world = {split: [trees.Video("3MSZA", 1, (trees.Sentence(text), trees.Sentence("the same")))]}
        trees.write_captions(tmp_path, "cooking", world)
    found = survey(open_annotations(tmp_path))
    assert found.problems == ("ids of different queries in val and test: 1, such as 3MSZA#enc#0",)


def test_remarks_of_the_reader_are_included(tmp_path: Path) -> None:
    trees.write_tvr(tmp_path)
    annotations = open_annotations(tmp_path)
    assert survey(annotations).remarks == annotations.remarks != ()


def test_own_videos_and_their_files(tmp_path: Path) -> None:
    for name in ("beach.mp4", "trip/pool.mkv", "idle.mov"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.mp4").symlink_to(tmp_path / "beach.mp4")
    lines = ("beach", "trip/pool.mkv", "desert", "forest.mp4", "link.mp4")
    (tmp_path / "annotations.csv").write_text(
        "".join(["video,query,split\n", *(f"{video},a dog,train\n" for video in lines)])
    )
    found = survey(own.load(tmp_path))
    assert found.problems == (
        "videos without a file: 2, such as desert",
        "files with several names: 1, such as beach and link.mp4",
    )
    assert found.remarks == ("files that no line describes: 1, such as idle.mov",)
    assert found.splits["train"].variant is None


def located(layout: str, end: float) -> Annotations:
    """Return a video of 30 s, a query with a moment that ends at `end`, and a video of unknown duration."""
    query = Query(id="q1", text="a dog jumps", video_id="beach", moments=(Moment(start=3.5, end=end),))
    untimed = Query(id="q2", text="a cat", video_id="pool", moments=(Moment(start=3.5, end=99.0),))
    return replace(
        made("own"),
        layout=layout,
        splits={"train": Split(video_ids=("beach", "pool"), queries=(query, untimed))},
        durations={"beach": 30.0},
    )


def test_late_moments() -> None:
    """A second is tolerated, and videos of unknown duration are not checked."""
    line = "moments that end after their video: 1, such as query 'q1': 3.5 to 31.5 s in beach, which lasts 30.0 s"
    assert line in survey(located("own", 31.5)).problems
    found = survey(located("original", 31.5))
    assert line in found.remarks
    assert not any("moments" in problem for problem in found.problems)
    assert not any("moments" in problem for problem in survey(located("own", 31.0)).problems)


def test_a_playhouse_needs_no_files(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_train=2, files=())
    assert survey(own.load(tmp_path)).problems == ()


def test_an_empty_split_has_no_means() -> None:
    found = survey(made("own", train=(0, 0)))
    assert (found.splits["train"].words, found.splits["train"].seconds) == (0.0, None)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ("qvhighlights", "highlight_val_release.jsonl"),
            "val is QVHighlights by YouTube video, val (474 videos, 1,550 queries)",
        ),
        (("charades", "charades_test_release.jsonl"), "test is Charades-STA, test (1,334 videos, 3,720 queries)"),
    ],
)
def test_real_files(names: tuple[str, str], line: str) -> None:
    folder = real_file(*names).parent
    for root in (folder, folder.parent):
        found = survey(open_annotations(root, names[0]))
        assert line in found.to_text().splitlines()
        assert found.problems == ()


# ---------------------------------------------------------------- features


class Stored:
    """Valid features in memory. Tests damage some of them."""

    path = Path("features.h5")
    fingerprint = FINGERPRINT

    def __init__(self, annotations: Annotations) -> None:
        splits = annotations.splits.values()
        self.videos = {
            video_id: VideoFeatures(
                frames=np.ones((3, 4), np.float32), times=np.arange(3.0, dtype=np.float32), duration=3.0
            )
            for split in splits
            for video_id in split.video_ids
        }
        self.texts = {
            query.id: TextFeatures(words=np.ones((5, 6), np.float32), sentence=np.ones((4,), np.float32))
            for split in splits
            for query in split.queries
        }
        self.origins = {query.id: origins.of_text(query.text) for split in splits for query in split.queries}
        self.unreadable: set[str] = set()

    def video_ids(self) -> list[str]:
        return list(self.videos)

    def text_ids(self) -> list[str]:
        return list(self.texts)

    def has_video(self, video_id: str) -> bool:
        return video_id in self.videos

    def has_text(self, text_id: str) -> bool:
        return text_id in self.texts

    def video(self, video_id: str) -> VideoFeatures:
        if video_id in self.unreadable:
            raise BadFeatures(f"{video_id} is cut short")
        return self.videos[video_id]

    def text(self, text_id: str) -> TextFeatures:
        return self.texts[text_id]

    def text_origin(self, text_id: str) -> int:
        return self.origins[text_id]

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.fixture
def annotations() -> Annotations:
    return made("own", train=(8, 20), val=(2, 5))


def test_valid_features(annotations: Annotations) -> None:
    check = check_features(annotations, Stored(annotations))
    assert check.ok
    assert check.durations == dict.fromkeys((*(f"train{k}" for k in range(8)), "val0", "val1"), 3.0)
    assert check.to_text().splitlines() == [
        "videos: 10 of 10 have features, width 4",
        "queries: 25 of 25 have features, width 6, sentence 4",
    ]


def test_missing_and_unused_features(annotations: Annotations) -> None:
    stored = Stored(annotations)
    for video_id in ("train1", "train2", "train3", "val0"):
        stored.videos[f"other {video_id}"] = stored.videos.pop(video_id)
    del stored.texts["val#4"]
    check = check_features(annotations, stored)
    assert not check.ok
    assert (check.videos.missing.count, check.videos.missing.examples) == (4, ("train1", "train2", "train3"))
    assert check.videos.orphans.count == 4
    assert check.queries.missing.examples == ("val#4",)
    assert check.to_text().splitlines() == [
        "videos: 6 of 10 have features, width 4",
        "note: features of videos that no split uses: 4, such as other train1, other train2, other train3",
        "problem: videos without features: 4, such as train1, train2, train3",
        "queries: 24 of 25 have features, width 6, sentence 4",
        "problem: queries without features: 1, such as val#4",
        "problem: queries whose video has no features: 12, such as train#1, train#2, train#3",
    ]


def test_sentences_edited_after_extraction_are_a_problem(annotations: Annotations) -> None:
    stored = Stored(annotations)
    stored.origins |= {"train#3": origins.of_text("a cat sleeps"), "train#4": UNKNOWN}
    check = check_features(annotations, stored)
    assert not check.ok
    assert (check.changed.count, check.changed.examples) == (1, ("train#3",))
    line = check.to_text().splitlines()[-1]
    assert line.startswith("problem: queries edited")
    assert line.endswith(": 1, such as train#3")


def test_unused_features_are_not_a_problem(annotations: Annotations) -> None:
    stored = Stored(annotations)
    stored.texts["other"] = stored.texts["val#0"]
    check = check_features(annotations, stored)
    assert check.ok
    assert check.queries.orphans.examples == ("other",)


def test_invalid_features(annotations: Annotations) -> None:
    stored = Stored(annotations)
    good, text = stored.videos["train0"], stored.texts["train#0"]
    stored.videos["train0"] = replace(good, frames=good.frames * np.float32(np.nan))
    stored.videos["train1"] = replace(good, times=np.full_like(good.times, np.inf))
    stored.videos["train2"] = replace(good, frames=np.ones((0, 4), np.float32), times=np.ones((0,), np.float32))
    stored.videos["train3"] = replace(good, duration=0.0)
    stored.videos["train4"] = replace(good, frames=np.ones((3, 5), np.float32))
    stored.unreadable = {"train5"}
    stored.texts["train#1"] = replace(text, words=np.ones((0, 6), np.float32))
    stored.texts["train#2"] = replace(text, sentence=np.full((4,), np.inf, np.float32))
    stored.texts["train#3"] = replace(text, sentence=np.ones((7,), np.float32))
    check = check_features(annotations, stored)
    assert not {"train3", "train5"} & set(check.durations)
    assert check.videos.not_finite.examples == ("train0", "train1")
    assert check.videos.empty.examples == ("train2", "train3")
    assert check.videos.odd.examples == ("train4 (5)",)
    assert check.videos.widths == {"4": 8, "5": 1}
    assert check.videos.unreadable.examples == ("train5: train5 is cut short",)
    assert check.queries.empty.examples == ("train#1",)
    assert check.queries.not_finite.examples == ("train#2",)
    assert check.queries.odd.examples == ("train#3 (6, sentence 7)",)
    assert not check.videos.ok
    assert not check.queries.ok
    lines = check.to_text().splitlines()
    assert lines[0] == "videos: 10 of 10 have features, width 4 or 5"
    assert "problem: videos whose features have another width than most: 1, such as train4 (5)" in lines
    assert "problem: queries whose features are empty: 1, such as train#1" in lines
    assert json.loads(json.dumps(check.to_dict()))["videos"]["odd"] == {"count": 1, "examples": ["train4 (5)"]}


def test_all_flaws_are_counted_and_a_few_named() -> None:
    annotations = made("own", train=(1000, 1))
    stored = Stored(annotations)
    stored.videos = {
        video_id: replace(
            features, frames=np.full((1, number % 7 + 1), np.nan, np.float32), times=np.zeros((1,), np.float32)
        )
        for number, (video_id, features) in enumerate(stored.videos.items())
    }
    check = check_features(annotations, stored)
    assert check.videos.not_finite.count == 1000
    assert check.videos.odd.count == 1000 - max(check.videos.widths.values())
    assert len(check.videos.not_finite.examples) == len(check.videos.odd.examples) == NUM_EXAMPLES
