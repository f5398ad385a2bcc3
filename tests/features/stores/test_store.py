import multiprocessing
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from midreel.errors import BadFeatures, BadStore, FingerprintMismatch, Locked, MissingFeatures
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.hdf5_log import HDF5Log
from midreel.features.stores.store import FeatureStore
from midreel.types import TextFeatures, VideoFeatures
from tests.features.fakes import FINGERPRINT, text_features, video_features


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore.create(tmp_path / "features.h5", FINGERPRINT)


def expect_video(found: VideoFeatures, expected: VideoFeatures) -> None:
    assert np.array_equal(found.frames, expected.frames)
    assert np.array_equal(found.times, expected.times)
    assert found.duration == expected.duration


def expect_text(found: TextFeatures, expected: TextFeatures) -> None:
    assert np.array_equal(found.words, expected.words)
    assert np.array_equal(found.sentence, expected.sentence)


def test_a_new_store_is_empty(store: FeatureStore) -> None:
    assert store.video_ids() == []
    assert store.text_ids() == []
    assert FeatureStore.open(store.path).fingerprint == FINGERPRINT
    assert repr(store) == f"FeatureStore({str(store.path)!r})"


def test_features_are_read_back_by_any_store(store: FeatureStore) -> None:
    for number in range(3):
        store.add_video(f"video {number}", video_features(number + 1, seed=number))
        store.add_text(f"text {number}", text_features(number + 2, seed=number))
    store.add_texts({f"text {number}": text_features(seed=number) for number in (3, 4)})
    for reader in (store, FeatureStore.open(store.path)):
        assert reader.video_ids() == ["video 0", "video 1", "video 2"]
        assert reader.text_ids() == [f"text {number}" for number in range(5)]
        for number in (2, 0, 1):
            expect_video(reader.video(f"video {number}"), video_features(number + 1, seed=number))
            expect_text(reader.text(f"text {number}"), text_features(number + 2, seed=number))
        expect_text(reader.text("text 4"), text_features(seed=4))
        assert reader.has_video("video 0")
        assert not reader.has_video("text 0")
        assert reader.has_text("text 0")
        assert not reader.has_text("video 0")


def test_a_store_of_a_backbone_without_texts(tmp_path: Path) -> None:
    blind = replace(FINGERPRINT, word_width=None, vocabulary=None, context_length=None)
    store = FeatureStore.create(tmp_path / "features.h5", blind)
    store.add_video("video", video_features())
    assert FeatureStore.open(store.path).video_ids() == ["video"]
    assert store.text_ids() == []
    assert not store.has_text("text")
    for use in (lambda: store.text("text"), lambda: store.add_text("text", text_features())):
        with pytest.raises(MissingFeatures, match="fake"):
            use()


def test_a_sentence_may_be_narrower_than_a_frame(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "features.h5", replace(FINGERPRINT, sentence_width=2))
    narrow = replace(text_features(), sentence=np.array([1.0, 2.0], np.float32))
    store.add_text("text", narrow)
    expect_text(FeatureStore.open(store.path).text("text"), narrow)
    with pytest.raises(BadFeatures, match=r"sentence of text 'wide' is \(4,\), expected \(2\)"):
        store.add_text("wide", text_features())


def test_a_tensor_with_a_gradient_is_rejected_with_the_remedy(store: FeatureStore) -> None:
    frames = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(BadFeatures, match=r"\.detach\(\)\.cpu\(\)"):
        store.add_video("video", replace(video_features(3), frames=frames))  # type: ignore[arg-type]


def test_a_closed_store_opens_again(store: FeatureStore) -> None:
    with store:
        store.add_video("a", video_features(seed=1))
    store.close()
    expect_video(store.video("a"), video_features(seed=1))
    store.add_video("b", video_features(seed=2))
    assert store.video_ids() == ["a", "b"]


@given(st.lists(st.text(st.characters(codec=None)), unique=True, max_size=8))
def test_ids_may_be_any_text(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    with FeatureStore.create(tmp_path_factory.mktemp("ids") / "features.h5", FINGERPRINT) as store:
        for number, name in enumerate(ids):
            store.add_video(name, video_features(2, seed=number))
            store.add_text(name, text_features(2, seed=number))
        store.close()
        assert store.video_ids() == store.text_ids() == ids
        for number, name in enumerate(ids):
            expect_video(store.video(name), video_features(2, seed=number))
            expect_text(store.text(name), text_features(2, seed=number))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/b//c", " a b ", "x\0y", "été", "e\u0301te\u0301", "\udcff.mp4", "v" * 9000]
)
def test_unusual_ids(store: FeatureStore, name: str) -> None:
    store.add_video(name, video_features())
    store.add_video(f"{name}!", video_features(seed=1))
    copy = FeatureStore.open(store.path)
    assert copy.video_ids() == [name, f"{name}!"]
    expect_video(copy.video(name), video_features())


def test_float16_on_disk_is_float32_in_memory(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "half.h5", replace(FINGERPRINT, dtype="float16"))
    store.add_video("a", video_features())
    found = store.video("a")
    assert found.frames.dtype == found.times.dtype == np.float32
    assert np.array_equal(found.frames, video_features().frames.astype(np.float16).astype(np.float32))
    assert np.array_equal(found.times, video_features().times)
    large = TextFeatures(words=np.full((2, 6), 1e5, np.float32), sentence=np.ones((4,), np.float32))
    with pytest.raises(BadFeatures, match=r"12 values of the words of text 'b' .* float16"):
        store.add_text("b", large)


@pytest.mark.parametrize("change", [{"frame_rate": None}, {"dtype": None}, {"dtype": "int8"}])
def test_a_store_needs_a_rate_and_a_dtype(tmp_path: Path, change: dict[str, str | None]) -> None:
    with pytest.raises(BadFeatures, match=r"frame_rate .* and dtype"):
        FeatureStore.create(tmp_path / "features.h5", replace(FINGERPRINT, **change))
    assert not list(tmp_path.iterdir())


def test_a_fingerprint_mismatch_lists_the_fields(store: FeatureStore) -> None:
    store.expect(FINGERPRINT)
    store.expect(replace(FINGERPRINT, frame_rate=None, dtype=None, source="a copy"))
    other = replace(FINGERPRINT, weights="f" * 64, frame_rate=1.0, crop=(9, 9))
    with pytest.raises(FingerprintMismatch) as caught:
        store.expect(other)
    message = str(caught.value)
    assert "weights 000000000000… != ffffffffffff…; crop (8, 8) != (9, 9); frame_rate 2.0 != 1.0" in message
    assert str(store.path) in message
    assert "local-dir:fake and --rate 2" in message


def test_resume_opens_or_creates_a_store(store: FeatureStore, tmp_path: Path) -> None:
    store.add_video("a", video_features())
    store.close()
    assert FeatureStore.resume(store.path, FINGERPRINT).video_ids() == ["a"]
    assert FeatureStore.resume(tmp_path / "deep" / "new.h5", FINGERPRINT).video_ids() == []
    with pytest.raises(FingerprintMismatch, match=r"width 4 != 5"):
        FeatureStore.resume(store.path, replace(FINGERPRINT, width=5))
    with pytest.raises(BadStore, match="already exists"):
        FeatureStore.create(store.path, FINGERPRINT)


def test_missing_features(store: FeatureStore) -> None:
    store.add_video("a", video_features())
    with pytest.raises(MissingFeatures, match=r"video 'b' \(it has 1 videos\)"):
        store.video("b")
    with pytest.raises(MissingFeatures, match="text 'a'"):
        store.text("a")
    with pytest.raises(BadStore, match="does not exist"):
        FeatureStore.open(store.path.with_name("nothing.h5"))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"frames": np.full((2, 4), np.nan, np.float32)},
            r"8 values of the frames of video 'v'",
        ),
        (
            {"frames": np.array([[0.0] * 4, [0.0, 1.0, np.inf, 2.0]], np.float32)},
            r"1 values of the frames of video 'v'",
        ),
        (
            {"frames": np.zeros((2, 5), np.float32)},
            r"frames of video 'v' is \(2, 5\), expected \(T, 4\)",
        ),
        ({"frames": np.zeros((4,), np.float32)}, r"frames of video 'v' is \(4,\), expected \(T, 4\)"),
        (
            {"frames": np.zeros((0, 4), np.float32), "times": np.zeros((0,), np.float32)},
            r"frames of video 'v' is \(0, 4\), expected \(T, 4\)",
        ),
        ({"times": np.array([0.0], np.float32)}, r"times of video 'v' is \(1,\), expected \(2\)"),
        ({"times": np.array([0.0, np.nan], np.float32)}, r"1 values of the times of video 'v'"),
        ({"times": np.array([1.0, 0.0], np.float32)}, r"times of video 'v' are not sorted"),
        ({"duration": 0.0}, r"duration of video 'v' is 0\.0 s"),
        ({"duration": float("nan")}, r"duration of video 'v' is nan s"),
    ],
)
def test_invalid_videos_are_rejected(store: FeatureStore, changes: dict[str, Any], message: str) -> None:
    features = replace(
        VideoFeatures(frames=np.zeros((2, 4), np.float32), times=np.arange(2.0, dtype=np.float32), duration=9.0),
        **changes,
    )
    with pytest.raises(BadFeatures, match=message):
        store.add_video("v", features)
    assert store.video_ids() == []


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            TextFeatures(words=np.full((2, 6), np.nan, np.float32), sentence=np.zeros((4,), np.float32)),
            r"12 values of the words of text 't'",
        ),
        (
            TextFeatures(words=np.zeros((2, 4), np.float32), sentence=np.zeros((4,), np.float32)),
            r"words of text 't' is \(2, 4\)",
        ),
        (
            TextFeatures(words=np.zeros((2, 6), np.float32), sentence=np.zeros((6,), np.float32)),
            r"sentence of text 't' is \(6,\)",
        ),
        (
            TextFeatures(words=np.zeros((0, 6), np.float32), sentence=np.zeros((4,), np.float32)),
            r"words of text 't' is \(0, 6\)",
        ),
    ],
)
def test_invalid_texts_are_rejected(store: FeatureStore, features: TextFeatures, message: str) -> None:
    with pytest.raises(BadFeatures, match=message):
        store.add_texts({"good": text_features(), "t": features})
    assert store.text_ids() == []


def test_features_are_checked_when_they_are_read(store: FeatureStore) -> None:
    store.close()
    log = HDF5Log(store.path, writable=True)
    frames = video_features().frames.astype("<f4")
    frames[1, 2] = float("nan")
    times = video_features().times.astype("<f8")
    log.append("videos", {"v": {"frames": frames, "times": times, "duration": times[-1] + 1}})
    log.close()
    with pytest.raises(BadFeatures, match="1 values of the frames of video 'v'"):
        store.video("v")


def test_a_header_of_another_version(tmp_path: Path) -> None:
    HDF5Log.create(tmp_path / "features.h5", '{"backbone": "fake"}', {"videos": {}})
    with pytest.raises(BadFeatures, match="fingerprint"):
        _ = FeatureStore.open(tmp_path / "features.h5").fingerprint


def test_a_pickled_store_is_its_path(store: FeatureStore) -> None:
    store.add_video("a", video_features())
    copy = pickle.loads(pickle.dumps(store))
    assert copy.path == store.path
    assert copy._log is None
    expect_video(copy.video("a"), video_features())


class _Videos(torch.utils.data.Dataset[np.ndarray[Any, Any]]):
    def __init__(self, store: FeatureStore) -> None:
        self.store, self.ids = store, store.video_ids()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> np.ndarray[Any, Any]:
        return self.store.video(self.ids[number]).frames


def test_data_loader_workers_read_the_store(store: FeatureStore) -> None:
    for number in range(6):
        store.add_video(str(number), video_features(seed=number))
    store.close()
    store.video("0")  # opens the file in this process; each worker opens it again
    context = multiprocessing.get_context("fork")
    loader = DataLoader(_Videos(store), batch_size=1, num_workers=2, multiprocessing_context=context)
    for number, batch in enumerate(loader):
        assert np.array_equal(batch[0], video_features(seed=number).frames)
    store.add_video("after", video_features())


def _read_in_child(store: FeatureStore, results: "multiprocessing.SimpleQueue[bool]") -> None:
    results.put(np.array_equal(store.video("a").frames, video_features().frames))
    store.close()


def test_a_fork_while_writing(store: FeatureStore) -> None:
    store.add_video("a", video_features())
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(store, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0  # otherwise `results.get` would wait forever
    assert results.get()
    assert store.path.read_bytes()[11] != 0  # still marked as being written, here
    store.add_video("b", video_features(seed=1))
    with pytest.raises(Locked):
        FeatureStore.open(store.path).add_video("c", video_features())
    store.close()
    expect_video(FeatureStore.open(store.path).video("b"), video_features(seed=1))


def test_writing_while_another_store_reads_in_this_process(store: FeatureStore) -> None:
    reader = FeatureStore.open(store.path)
    with pytest.raises(BadStore, match="Close other stores"):
        store.add_video("a", video_features())
    reader.close()
    store.add_video("a", video_features())
    expect_video(reader.video("a"), video_features())


def test_features_of_any_precision_can_be_added(store: FeatureStore) -> None:
    for dtype in (np.float16, np.float64):
        features = replace(video_features(), frames=video_features().frames.astype(dtype))
        store.add_video(str(dtype), features)
        assert np.array_equal(store.video(str(dtype)).frames, features.frames.astype(np.float32))


def test_an_interrupted_add(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(table: object, rows: object) -> None:
        raise KeyboardInterrupt

    store.add_video("a", video_features())
    with monkeypatch.context() as patched:
        patched.setattr("midreel.features.stores.hdf5_log._Table.complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.add_video("b", video_features(9, seed=1))
    assert store.video_ids() == ["a"]
    store.add_video("b", video_features(3, seed=2))
    expect_video(FeatureStore.open(store.path).video("b"), video_features(3, seed=2))


def test_a_process_killed_while_adding(store: FeatureStore) -> None:
    """A process dies after it wrote a video, before its mark. The next one reads the store and continues."""
    store.add_video("a", video_features())
    store.close()
    code = """
import os, sys
from midreel.features.stores.hdf5_log import _Table
from midreel.features.stores.store import FeatureStore
from tests.features.fakes import video_features
store = FeatureStore.open(sys.argv[1])
store.add_video("b", video_features(seed=1))
_Table.complete = lambda table, rows: os._exit(9)
store.add_video("c", video_features(seed=2))
"""
    assert subprocess.run([sys.executable, "-c", code, str(store.path)], timeout=60).returncode == 9
    again = FeatureStore.open(store.path)
    assert again.video_ids() == ["a", "b"]
    again.add_video("c", video_features(seed=3))
    assert again.fingerprint == Fingerprint.from_json(FINGERPRINT.to_json())
    for number, name in ((0, "a"), (1, "b"), (3, "c")):
        expect_video(again.video(name), video_features(seed=number))


def test_a_truncated_store(store: FeatureStore) -> None:
    store.add_video("a", video_features())
    store.close()
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadStore, match="truncated"):
        FeatureStore.open(store.path)


@pytest.mark.parametrize("lost", ["videos", "texts", "videos/frames", "videos/index", "texts/ids"])
def test_a_store_without_a_table_or_column(store: FeatureStore, lost: str) -> None:
    store.add_video("a", video_features())
    store.close()
    with h5py.File(store.path, "r+", locking=False) as file:
        del file[lost]
    for use in (FeatureStore.open, lambda path: FeatureStore(path).keep_videos({"a"})):
        with pytest.raises(BadStore) as caught:
            use(store.path)
        assert str(store.path) in str(caught.value)
        assert "delete" not in str(caught.value)  # the videos may no longer exist


def test_keep_videos_frees_the_space_of_other_videos(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with FeatureStore.create(path, FINGERPRINT) as store:
        for number in range(40):
            store.add_video(f"v{number}", video_features(2000, seed=number), origin=number + 1)
        store.add_text("q", text_features())
        store.close()
        before, reader = path.stat().st_size, FeatureStore.open(path)
        store.keep_videos({"v3", "v7", "elsewhere"})
        assert store.video_ids() == ["v3", "v7"]
        assert reader.video_ids()[:2] == ["v0", "v1"]  # an open reader continues to read the old file
        reader.close()
        assert path.stat().st_size < before / 3
        np.testing.assert_allclose(
            store.video("v7").frames, video_features(2000, seed=7).frames, rtol=1.3e-6, atol=1e-5
        )
        assert (store.video_origin("v7"), store.text_ids()) == (8, ["q"])
        store.add_video("v0", video_features())
        assert store.video_ids() == ["v3", "v7", "v0"]
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_store_with_a_writer_is_not_rewritten(tmp_path: Path) -> None:
    writer = FeatureStore.create(tmp_path / "features.h5", FINGERPRINT)
    writer.add_video("v", video_features())
    with pytest.raises(Locked):
        FeatureStore(tmp_path / "features.h5").keep_videos(set())
    writer.close()
