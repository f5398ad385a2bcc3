import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midreel.errors import BadFeatures, BadSetting, BadStore, FingerprintMismatch, MissingFeatures
from midreel.features import Features, FeatureStore, Fingerprint, JoinedParts, join_stores
from midreel.features.extract import Outcome, extract_texts
from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import HDF5Log
from midreel.features.stores.join import JoinReport, nearest, num_items
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.training.data import FeatureSet
from midreel.types import Query, Split, TextFeatures, VideoFeatures
from tests.features.fakes import FINGERPRINT, FakeBackbone, text_features, video_features

CLIP = replace(FINGERPRINT, backbone="CLIPModel", frame_rate=0.5, dtype="float16")
SLOWFAST = Fingerprint(
    backbone="SlowFast", weights="2" * 64, width=5, frame_rate=0.5, dtype="float32", source="slowfast.pyth"
)


def video(num_frames: int, width: int, *, every: float = 2.0, first: float = 0.0, seed: int = 0) -> VideoFeatures:
    """Return random frames, `every` seconds apart from `first` on. Their values are exact in float16."""
    random = np.random.default_rng(seed)
    return VideoFeatures(
        frames=random.normal(size=(num_frames, width)).astype(np.float16).astype(np.float32),
        times=first + np.arange(num_frames, dtype=np.float32) * every,
        duration=num_frames * every,
    )


def store_of(path: Path, fingerprint: Fingerprint, videos: dict[str, VideoFeatures], num_texts: int = 0) -> Path:
    with FeatureStore.create(path, fingerprint) as store:
        for video_id, features in videos.items():
            store.add_video(video_id, features)
        if num_texts:
            store.add_texts({f"text {n}": text_features(n % 4 + 1, seed=n) for n in range(num_texts)})
    return path


class Reader(FakeBackbone):
    """Encodes texts with the fingerprint of the CLIP store."""

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = CLIP


@pytest.fixture
def slowfast(tmp_path: Path) -> Path:
    return store_of(tmp_path / "slowfast.h5", SLOWFAST, {name: video(6, 5, seed=n) for n, name in enumerate("abc")})


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    videos = {name: video(6, 4, seed=10 + n) for n, name in enumerate("abc")}
    return store_of(tmp_path / "clip.h5", CLIP, videos, num_texts=3)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "joined.h5"


# ---------------------------------------------------------------- side by side


def test_frames_are_concatenated_and_texts_are_copied(slowfast: Path, clip: Path, out: Path) -> None:
    report = join_stores([slowfast, clip], out)
    assert (report.videos.done, report.videos.skipped, report.failed) == (["a", "b", "c"], [], {})
    assert (report.largest_gap, report.largest_difference) == (0, 0)
    joined, first, last = map(FeatureStore.open, (out, slowfast, clip))
    for name in "abc":
        expected = np.concatenate((first.video(name).frames, last.video(name).frames), 1)
        assert np.array_equal(joined.video(name).frames, expected)
        assert np.array_equal(joined.video(name).times, first.video(name).times)
        assert joined.video(name).duration == first.video(name).duration
    assert joined.text_ids() == ["text 0", "text 1", "text 2"]
    for name in joined.text_ids():
        assert np.array_equal(joined.text(name).words, last.text(name).words)
        assert np.array_equal(joined.text(name).sentence, last.text(name).sentence)


def test_the_fingerprint_of_the_result(slowfast: Path, clip: Path, out: Path, tmp_path: Path) -> None:
    join_stores([slowfast, clip], out)
    found = FeatureStore.open(out).fingerprint
    expected = Fingerprint(
        backbone="SlowFast + CLIPModel",
        weights=found.weights,
        width=9,
        word_width=6,
        sentence_width=4,
        vocabulary=CLIP.vocabulary,
        context_length=CLIP.context_length,
        frame_rate=0.5,
        dtype="float32",
    )
    assert found == expected
    assert found.source == "slowfast.pyth + local-dir:fake"
    assert found.joint_width == 4
    others = [
        store_of(tmp_path / "1.h5", replace(CLIP, weights="3" * 64), {"a": video(6, 4)}),
        store_of(tmp_path / "2.h5", replace(CLIP, image_size=9), {"a": video(6, 4)}),
    ]
    hashes = {found.weights}
    for number, other in enumerate(others):
        join_stores([slowfast, other], tmp_path / f"joined {number}.h5")
        hashes.add(FeatureStore.open(tmp_path / f"joined {number}.h5").fingerprint.weights)
    join_stores([clip, slowfast], tmp_path / "clock.h5")
    hashes.add(FeatureStore.open(tmp_path / "clock.h5").fingerprint.weights)
    assert len(hashes) == 4
    assert {len(each) for each in hashes} == {64}


def test_the_sizes_of_the_paper(tmp_path: Path) -> None:
    wide = store_of(tmp_path / "slowfast.h5", replace(SLOWFAST, width=2304), {"v": video(75, 2304)})
    clip_b = replace(CLIP, width=512, word_width=512)
    clip = store_of(tmp_path / "clip.h5", clip_b, {"v": video(75, 512, seed=1)})
    join_stores([wide, clip], tmp_path / "joined.h5")
    joined = FeatureStore.open(tmp_path / "joined.h5")
    assert (joined.fingerprint.width, joined.fingerprint.joint_width) == (2816, 512)
    assert np.array_equal(joined.video("v").frames[:, -512:], FeatureStore.open(clip).video("v").frames)


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A store with frames and words of its own, without a joint space."""
    apart = replace(SLOWFAST, word_width=7, sentence_width=7, joint=False)
    with FeatureStore.create(tmp_path / "reader.h5", apart) as store:
        for number, name in enumerate("abc"):
            store.add_video(name, video(6, 5, seed=number))
        random = np.random.default_rng(0)
        for number in range(3):
            words = random.normal(size=(number + 2, 7)).astype(np.float32)
            store.add_texts({f"text {number}": TextFeatures(words=words, sentence=words[-1])})
    return tmp_path / "reader.h5"


def test_words_and_sentences_of_two_stores(reader: Path, clip: Path, out: Path) -> None:
    report = join_stores([reader, clip], out, sentences=clip)
    assert not report.failed
    assert len(report.texts.done) == 3
    assert num_items([reader, clip], None, clip) == 6
    joined, student, teacher = map(FeatureStore.open, (out, reader, clip))
    found = joined.fingerprint
    assert (found.width, found.word_width, found.sentence_width, found.joint) == (9, 7, 4, True)
    for name in joined.text_ids():
        assert np.array_equal(joined.text(name).words, student.text(name).words)
        assert np.array_equal(joined.text(name).sentence, teacher.text(name).sentence)
    assert np.array_equal(joined.video("a").frames[:, -4:], teacher.video("a").frames)
    joined.close()
    again = join_stores([reader, clip], out, sentences=clip)
    assert (again.texts.done, len(again.texts.skipped)) == ([], 3)
    with pytest.raises(FingerprintMismatch):  # other texts, so another store
        join_stores([reader, clip], out, texts=clip)


def test_sentences_of_other_texts_fail(reader: Path, clip: Path, out: Path) -> None:
    with FeatureStore.resume(reader, FeatureStore.open(reader).fingerprint) as store:
        words = np.ones((2, 7), np.float32)
        store.add_texts({"alone": TextFeatures(words=words, sentence=words[0])})
        store.add_texts({"other": TextFeatures(words=words, sentence=words[0])}, {"other": 1})
    with FeatureStore.resume(clip, CLIP) as store:
        store.add_texts({"other": text_features(2)}, {"other": 2})
    report = join_stores([reader, clip], out, sentences=clip)
    assert set(report.texts.failed) == {"alone", "other"}
    assert len(report.texts.done) == 3


@pytest.mark.parametrize("chosen", ["reader.h5", "slowfast.h5", "gone.h5"])
def test_sentences_need_a_joint_space(reader: Path, clip: Path, slowfast: Path, out: Path, chosen: str) -> None:
    with pytest.raises(BadSetting, match=r"--sentences with one of: .*clip\.h5"):
        join_stores([reader, clip, slowfast], out, texts=reader, sentences=reader.parent / chosen)


def test_the_store_with_texts_comes_last_whatever_the_order(slowfast: Path, clip: Path, out: Path) -> None:
    join_stores([clip, slowfast], out)
    joined = FeatureStore.open(out)
    assert joined.fingerprint.backbone == "SlowFast + CLIPModel"
    assert np.array_equal(joined.video("b").frames[:, -4:], FeatureStore.open(clip).video("b").frames)


def test_zero_shot_search_gives_the_same_scores_as_with_clip_alone(slowfast: Path, clip: Path, out: Path) -> None:
    join_stores([slowfast, clip], out)
    queries = tuple(Query(id=f"text {n}", text="", video_id="abc"[n]) for n in range(3))
    split = Split(video_ids=("a", "b", "c"), queries=queries)
    scores = []
    for store in map(FeatureStore.open, (clip, out)):
        method = ClipZeroShot(ClipZeroShotConfig(width=store.fingerprint.joint_width, num_frames=6, num_clips=3))
        data = FeatureSet.prepare(method, split, store)
        batch = data.batch(torch.arange(3))
        scores.append(method.score(method.encode_queries(batch.queries), method.encode_videos(batch.videos)))
    np.testing.assert_allclose(scores[0], scores[1], rtol=1.3e-6, atol=1e-5)


def test_three_stores(slowfast: Path, clip: Path, out: Path, tmp_path: Path) -> None:
    sound = store_of(tmp_path / "sound.h5", replace(SLOWFAST, backbone="sound"), {"a": video(6, 5, seed=5)})
    report = join_stores([slowfast, clip, sound], out)
    joined = FeatureStore.open(out)
    assert joined.fingerprint.backbone == "SlowFast + sound + CLIPModel"
    parts = [FeatureStore.open(path).video("a").frames for path in (slowfast, sound, clip)]
    assert np.array_equal(joined.video("a").frames, np.concatenate(parts, 1))
    assert set(report.failed) == {"b", "c"}


def test_no_texts_at_all(slowfast: Path, out: Path, tmp_path: Path) -> None:
    other = store_of(tmp_path / "other.h5", replace(SLOWFAST, backbone="other"), {"a": video(6, 5)})
    report = join_stores([slowfast, other], out)
    joined = FeatureStore.open(out)
    assert (joined.fingerprint.word_width, joined.text_ids(), report.texts.done) == (None, [], [])


# ---------------------------------------------------------------- by time


@given(
    times=st.lists(st.integers(0, 400), min_size=1, max_size=20, unique=True).map(sorted),
    wanted=st.lists(st.integers(-50, 450), max_size=20),
)
def test_nearest_returns_the_earlier_of_two_equally_near_times(times: list[int], wanted: list[int]) -> None:
    found = nearest(np.array(times, np.float32) / 4, np.array(wanted, np.float32) / 4)
    assert found.tolist() == [min(range(len(times)), key=lambda n: (abs(times[n] - time), n)) for time in wanted]


def test_frames_are_joined_by_time_not_by_number(slowfast: Path, out: Path, tmp_path: Path) -> None:
    """CLIP has four times as many frames, so every fourth is joined."""
    fast = video(24, 4, every=0.5, seed=3)
    clip = store_of(tmp_path / "clip.h5", replace(CLIP, frame_rate=2.0), {"a": fast, "b": fast, "c": fast})
    report = join_stores([slowfast, clip], out)
    assert report.largest_gap == 0
    assert np.array_equal(FeatureStore.open(out).video("b").frames[:, 5:], fast.frames[::4])


def test_jittered_times_and_a_missing_last_frame_are_accepted(slowfast: Path, out: Path, tmp_path: Path) -> None:
    """Real presentation times deviate from the frame rate."""
    base = video(5, 4, seed=3)
    jittered = replace(base, times=base.times + np.array([0.0, 0.04, -0.03, 0.02, 0.01], np.float32), duration=11.2)
    clip = store_of(tmp_path / "clip.h5", CLIP, {"a": jittered})
    report = join_stores([slowfast, clip], out)
    assert report.videos.done == ["a"]
    assert report.largest_gap == pytest.approx(1.99)
    assert report.largest_difference == pytest.approx(0.8)
    assert np.array_equal(FeatureStore.open(out).video("a").frames[:, 5:], base.frames[[0, 1, 2, 3, 4, 4]])


def test_times_in_the_middle_of_each_interval(slowfast: Path, out: Path, tmp_path: Path) -> None:
    middles = store_of(tmp_path / "middles.h5", replace(SLOWFAST, backbone="M"), {"a": video(6, 5, first=1.0)})
    starts = store_of(tmp_path / "starts.h5", CLIP, {"a": video(6, 4, seed=1)})
    join_stores([middles, starts], out)
    assert np.array_equal(FeatureStore.open(out).video("a").frames[:, 5:], video(6, 4, seed=1).frames)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (  # starts late
            replace(video(3, 4, first=6.0), duration=12.0),
            r"3 of 6 frames in .*slowfast.h5 \(0.00 to 10.00 s\) .* 6.00 s .*clip.h5 \(6.00 to 10.00 s\), .* 1 s",
        ),
        (  # ends early
            replace(video(4, 4), duration=12.0),
            r"2 of 6 frames .* 4.00 s .*clip.h5 \(0.00 to 6.00 s\)",
        ),
        (  # has holes
            replace(video(2, 4, every=10.0), duration=12.0),
            r"4 of 6 frames .* 4.00 s",
        ),
        (  # another cut of the video
            video(8, 4),
            r"12.00 s in .*slowfast.h5 and 16.00 s in .*clip.h5, .* 2 s",
        ),
        (  # drifts: 20 pictures a second taken for 25
            video(6, 4, every=2.0 * 25 / 20),
            r"12.00 s in .* and 15.00 s in .*, .* 2 s",
        ),
    ],
)
def test_videos_with_different_times_fail(
    slowfast: Path, out: Path, tmp_path: Path, other: VideoFeatures, reason: str
) -> None:
    clip = store_of(tmp_path / "clip.h5", CLIP, {"a": other, "b": video(6, 4)})
    report = join_stores([slowfast, clip], out)
    assert FeatureStore.open(out).video_ids() == report.videos.done == ["b"]
    with pytest.raises(BadFeatures, match=reason):
        raise BadFeatures(report.failed["a"])
    assert f"failed a: {report.failed['a']}" in report.text


def test_a_single_frame_must_be_near(out: Path, tmp_path: Path) -> None:
    one = replace(video(1, 5), duration=9.0)
    slowfast = store_of(tmp_path / "slowfast.h5", SLOWFAST, {"near": one, "far": one})
    others = {"near": replace(video(1, 4), duration=9.0), "far": replace(video(1, 4, first=8.0), duration=9.0)}
    report = join_stores([slowfast, store_of(tmp_path / "clip.h5", CLIP, others)], out)
    assert report.videos.done == ["near"]
    assert "1 of 1 frames" in report.failed["far"]


def test_the_slower_store_must_come_first(slowfast: Path, clip: Path, out: Path, tmp_path: Path) -> None:
    fast = store_of(tmp_path / "fast.h5", replace(SLOWFAST, frame_rate=2.0), {"a": video(24, 5, every=0.5)})
    with pytest.raises(BadSetting, match=r"clip.h5 .* 2 s .*fast.h5 .* 0.5 s.* --tolerance 1\b"):
        join_stores([fast, clip], out)
    assert not out.exists()
    assert join_stores([fast, clip], out, tolerance=1.0).videos.done == ["a"]
    frames = FeatureStore.open(out).video("a").frames
    assert frames.shape == (24, 9)
    assert np.array_equal(frames[1:5, 5:], FeatureStore.open(clip).video("a").frames[[0, 0, 1, 1]])


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_tolerance(slowfast: Path, clip: Path, out: Path, tolerance: float) -> None:
    with pytest.raises(BadSetting, match=f"tolerance is {tolerance}"):
        join_stores([slowfast, clip], out, tolerance=tolerance)


# ---------------------------------------------------------------- missing and damaged videos, resuming


def test_videos_that_some_stores_lack_fail(out: Path, tmp_path: Path) -> None:
    slowfast = store_of(tmp_path / "slowfast.h5", SLOWFAST, {"a": video(6, 5), "b": video(6, 5)})
    clip = store_of(tmp_path / "clip.h5", CLIP, {"b": video(6, 4), "c": video(6, 4)})
    report = join_stores([slowfast, clip], out)
    assert report.videos.done == ["b"]
    assert list(report.failed) == ["a", "c"]
    assert str(clip) in report.failed["a"]
    assert str(slowfast) in report.failed["c"]
    assert report.text.splitlines()[0] == "videos: 1 joined, 0 unchanged, 2 failed"


def test_damaged_entries_fail(slowfast: Path, clip: Path, out: Path) -> None:
    log = HDF5Log(clip, writable=True)
    entry = log.read("videos", "a")
    log.append("videos", {"nan": entry | {"frames": entry["frames"] * float("nan")}})
    log.append(
        "videos", {"damaged": entry | {"duration": entry["duration"].astype("<f4")}}
    )  # another dtype than the stored one, so the checksum is wrong
    log.close()
    with FeatureStore.open(slowfast) as store:
        for name in ("nan", "damaged"):
            store.add_video(name, video(6, 5))
    report = join_stores([slowfast, clip], out)
    assert report.videos.done == ["a", "b", "c"]
    assert "24 values of the frames of video 'nan'" in report.failed["nan"]
    assert "checksum" in report.failed["damaged"]


def test_a_second_join_adds_only_new_videos(slowfast: Path, clip: Path, out: Path) -> None:
    outcomes: list[Outcome] = []
    join_stores([slowfast, clip], out, progress=outcomes.append)
    assert len(outcomes) == num_items([slowfast, clip]) == 6
    assert {outcome.num_frames for outcome in outcomes if outcome.id in "abc"} == {6}
    before = out.read_bytes()
    report = join_stores([slowfast, clip], out)
    assert (report.videos.skipped, report.texts.skipped) == (["a", "b", "c"], ["text 0", "text 1", "text 2"])
    assert "times" not in report.text
    assert out.read_bytes() == before
    for path, width in ((slowfast, 5), (clip, 4)):
        with FeatureStore.open(path) as store:
            store.add_video("d", video(6, width, seed=4))
    assert join_stores([slowfast, clip], out).videos.done == ["d"]
    assert FeatureStore.open(out).video_ids() == ["a", "b", "c", "d"]


def test_changed_features_are_joined_again(out: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "slowfast.h5", tmp_path / "clip.h5"]

    def encode(origin: int, texts: dict[str, str]) -> JoinReport:
        for path, fingerprint in zip(paths, (SLOWFAST, CLIP), strict=True):
            with FeatureStore.resume(path, fingerprint) as store:
                store.add_video("changes", video(6, fingerprint.width, seed=origin), origin)
                if origin == 1:
                    store.add_video("stays", video(6, fingerprint.width, seed=9), 9)
        with FeatureStore.open(paths[1]) as clip:
            extract_texts(texts.items(), Reader(), clip)
        return join_stores(paths, out)

    encode(1, {"1": "a dog", "2": "a cat"})
    report = encode(2, {"1": "a cow", "2": "a cat", "3": "a dog"})
    assert (report.videos.done, report.videos.skipped) == (["changes"], ["stays"])
    assert (sorted(report.texts.done), report.texts.skipped) == (["1", "3"], ["2"])
    joined, clip = FeatureStore.open(out), FeatureStore.open(paths[1])
    assert np.array_equal(joined.video("changes").frames[:, 5:], video(6, 4, seed=2).frames)
    for name, text in (("1", "a cow"), ("2", "a cat"), ("3", "a dog")):
        assert np.array_equal(joined.text(name).words, clip.text(name).words)
        assert joined.text_origin(name) == origins.of_text(text)


def test_a_killed_join_is_resumed(slowfast: Path, clip: Path, out: Path, tmp_path: Path) -> None:
    code = """
import os, sys
from midreel.features.stores.join import join_stores
def die(outcome):
    if outcome.id == "b":
        os._exit(9)
join_stores(sys.argv[1:3], sys.argv[3], progress=die)
"""
    words = [sys.executable, "-c", code, str(slowfast), str(clip), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    assert subprocess.run(words, timeout=120, env=environment).returncode == 9
    report = join_stores([slowfast, clip], out)
    assert (report.videos.skipped, report.videos.done) == (["a", "b"], ["c"])
    join_stores([slowfast, clip], tmp_path / "whole.h5")
    again, whole = FeatureStore.open(out), FeatureStore.open(tmp_path / "whole.h5")
    assert again.text_ids() == whole.text_ids()
    for name in "abc":
        assert np.array_equal(again.video(name).frames, whole.video(name).frames)


def test_many_texts(slowfast: Path, out: Path, tmp_path: Path) -> None:
    clip = store_of(tmp_path / "clip.h5", CLIP, {"a": video(6, 4)}, num_texts=300)
    report = join_stores([slowfast, clip], out)
    assert len(report.texts.done) == len(FeatureStore.open(out).text_ids()) == 300


def test_a_store_of_another_join_is_rejected(slowfast: Path, clip: Path, out: Path) -> None:
    join_stores([slowfast, clip], out)
    with pytest.raises(FingerprintMismatch, match=r"joined\.h5 .*: weights"):
        join_stores([clip, slowfast], out)


def test_choosing_the_store_with_texts(clip: Path, out: Path, tmp_path: Path) -> None:
    large = replace(CLIP, backbone="large", weights="4" * 64)
    silent = store_of(tmp_path / "silent.h5", large, {"a": video(6, 4, seed=9)})
    join_stores([clip, silent], tmp_path / "one.h5")  # only one of them has some
    assert FeatureStore.open(tmp_path / "one.h5").fingerprint.backbone == "large + CLIPModel"
    other = store_of(tmp_path / "other.h5", large, {"a": video(6, 4, seed=9)}, num_texts=1)
    with pytest.raises(BadSetting, match=r"texts is None, .* --texts .*clip\.h5, .*other\.h5"):
        join_stores([clip, other], out)
    join_stores([clip, other], out, texts=other)
    joined = FeatureStore.open(out)
    assert (joined.text_ids(), joined.fingerprint.backbone) == (["text 0"], "CLIPModel + large")
    with pytest.raises(BadSetting, match=r"texts is 'elsewhere\.h5'"):
        join_stores([clip, other], tmp_path / "more.h5", texts="elsewhere.h5")


def test_choosing_a_store_without_texts(slowfast: Path, out: Path, tmp_path: Path) -> None:
    other = store_of(tmp_path / "other.h5", replace(SLOWFAST, backbone="other"), {"a": video(6, 5)})
    with pytest.raises(BadSetting, match=r"texts is '.*slowfast\.h5'"):
        join_stores([slowfast, other], out, texts=slowfast)


def test_fewer_than_two_stores(slowfast: Path, clip: Path, out: Path) -> None:
    for paths, named in (([], ""), ([slowfast], "slowfast.h5"), ([clip, clip], "clip.h5, .*clip.h5")):
        with pytest.raises(BadSetting, match=rf"\[.*{named}\], expected two"):
            join_stores(paths, out)
    with pytest.raises(BadSetting, match=r"clip\.h5 is one of the stores"):
        join_stores([slowfast, clip], clip)
    with pytest.raises(BadStore, match=r"nothing\.h5 does not exist"):
        join_stores([slowfast, out.with_name("nothing.h5")], out)


def test_the_report_as_a_dictionary(slowfast: Path, clip: Path, out: Path) -> None:
    with FeatureStore.open(slowfast) as store:
        store.add_video("d", video(6, 5))
    report = join_stores([slowfast, clip], out)
    assert json.loads(json.dumps(report.to_dict())) == {
        "videos": {"done": 3, "skipped": 0, "failed": report.failed},
        "texts": {"done": 3, "skipped": 0, "failed": {}},
        "largest_gap": 0.0,
        "largest_difference": 0.0,
    }


# ---------------------------------------------------------------- end to end


@pytest.fixture
def parts(tmp_path: Path) -> FeatureStore:
    """A video in two segments, another in one, and one that is whole."""
    store = FeatureStore.create(tmp_path / "features.h5", FINGERPRINT)
    for number, name in enumerate(("x_y_60.0_210.0", "x_y_0.0_60.0", "z_0.0_150.0", "whole")):
        store.add_video(name, video_features(number + 2, seed=number))
    store.add_text("text", text_features())
    return store


PARTS = {"x_y": {"x_y_0.0_60.0": 1.5, "x_y_60.0_210.0": 1.0}, "z": {"z_0.0_150.0": 2.0}}


def test_parts_are_joined_into_a_video(parts: FeatureStore) -> None:
    joined = JoinedParts(parts, PARTS)
    assert isinstance(joined, Features)
    found, first, second = joined.video("x_y"), video_features(3, seed=1), video_features(2, seed=0)
    assert np.array_equal(found.frames, np.concatenate((first.frames, second.frames)))
    assert found.times.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert found.duration == first.duration + second.duration == 2.5
    assert joined.video("z").duration == video_features(4).duration
    assert joined.video("whole").duration == video_features(5).duration
    assert joined.video_ids() == ["x_y", "z", "whole"]
    assert joined.text_ids() == ["text"]
    assert joined.has_text("text")
    assert np.array_equal(joined.text("text").words, text_features().words)
    assert (joined.path, joined.fingerprint) == (parts.path, parts.fingerprint)
    assert repr(joined) == f"JoinedParts({parts!r}, 2 videos)"
    joined.close()
    assert parts._log is None


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 100)), min_size=1, max_size=6))
@settings(max_examples=15)
def test_times_are_sorted_and_stay_within_their_part(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, float]]
) -> None:
    """Each part has a number of frames, two a second, and a duration by its annotations."""
    store = FeatureStore.create(tmp_path_factory.mktemp("parts") / "features.h5", replace(FINGERPRINT, width=1))
    for number, (count, _) in enumerate(lengths):
        frames = np.full((count, 1), number, np.float32)
        store.add_video(
            str(number), VideoFeatures(frames=frames, times=np.arange(count, dtype=np.float32) / 2, duration=count / 2)
        )
    found = JoinedParts(store, {"v": {str(n): duration for n, (_, duration) in enumerate(lengths)}}).video("v")
    assert found.duration == pytest.approx(sum(duration for _, duration in lengths))
    assert (np.diff(found.times) > 0).all()
    start = 0.0
    for number, (_, duration) in enumerate(lengths):
        mine = found.times[found.frames[:, 0] == number]
        assert len(mine) == max(1, round(duration * 2))
        assert mine[0] == pytest.approx(start)
        start += duration
        assert mine[-1] < start


def test_a_video_that_is_stored_as_a_whole_needs_no_parts(parts: FeatureStore) -> None:
    joined = JoinedParts(parts, {"whole": {"whole_0.0_60.0": 60.0, "whole_60.0_90.0": 30.0}})
    assert joined.has_video("whole")
    assert np.array_equal(joined.video("whole").frames, video_features(5, seed=3).frames)


def test_missing_parts(parts: FeatureStore) -> None:
    joined = JoinedParts(parts, PARTS | {"z": {"z_0.0_150.0": 2.0, "z_150.0_300.0": 2.0}})
    assert not joined.has_video("z")
    assert joined.video_ids() == ["x_y", "whole"]
    with pytest.raises(MissingFeatures, match=r"lacks 1 of the 2 parts of 'z'.*'z_150\.0_300\.0'"):
        joined.video("z")
    with pytest.raises(MissingFeatures, match="video 'nobody'"):
        joined.video("nobody")
    for wrong in ({}, {"z_0.0_150.0": 0.0}):
        with pytest.raises(BadSetting, match=r"video 'v' are {.*}"):
            JoinedParts(parts, {"v": wrong})


def test_joined_parts_can_be_pickled(parts: FeatureStore) -> None:
    copy = pickle.loads(pickle.dumps(JoinedParts(parts, PARTS)))
    assert len(copy.video("x_y").frames) == 5


def test_joined_parts_can_be_used_for_training(parts: FeatureStore) -> None:
    split = Split(video_ids=("x_y",), queries=(Query(id="text", text="", video_id="x_y"),))
    method = ClipZeroShot(ClipZeroShotConfig(width=4, num_frames=5, num_clips=2))
    data = FeatureSet.prepare(method, split, JoinedParts(parts, PARTS))
    assert data.durations.tolist() == [2.5]
    assert isinstance(data.texts[0], TextFeatures)
