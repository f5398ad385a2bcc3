import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import (
    BadAnnotation,
    BadFeatures,
    BadSetting,
    BadStore,
    FingerprintMismatch,
    MissingVideo,
    UnreadableVideo,
)
from midreel.features import Backbone
from midreel.features.backbones.base import Image
from midreel.features.extract import (
    MOST_IN_PROGRESS,
    ExtractionReport,
    Outcome,
    VideoItem,
    _in_background,
    change,
    extract_texts,
    extract_videos,
    stored_videos,
)
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import Damage
from tests.features.fakes import FINGERPRINT, FakeBackbone, image_of


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore.create(tmp_path / "features.h5", FINGERPRINT)


@pytest.fixture(autouse=True)
def _all_threads_end() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "midreel-decode"]


def frames(*values: int) -> Iterator[tuple[float, Image]]:
    for number, value in enumerate(values):
        yield number / 2, image_of(value)


def broken(*values: int) -> Iterator[tuple[float, Image]]:
    yield from frames(*values)
    raise OSError("moov atom not found")


def item(name: str, images: Iterable[tuple[float, Image]], duration: float = 1.0) -> VideoItem:
    return VideoItem(id=name, frames=images, duration=duration)


def video(name: str, *values: int) -> VideoItem:
    return item(name, frames(*values), len(values) / 2)


def test_videos_are_stored_with_their_times(store: FeatureStore) -> None:
    report = extract_videos([video("a", 1, 2, 3), video("b", 4)], FakeBackbone(), store, rate=2.0)
    assert (report.done, report.skipped, report.failed) == (["a", "b"], [], {})
    found = store.video("a")
    assert found.frames.tolist() == [[1, 1, 1, 3], [2, 2, 2, 6], [3, 3, 3, 9]]
    assert found.times.tolist() == [0.0, 0.5, 1.0]
    assert found.duration == 1.5
    assert store.video("b").frames.tolist() == [[4, 4, 4, 12]]


def test_batches_span_videos(store: FeatureStore) -> None:
    backbone = FakeBackbone()
    items = [video(str(length), *range(length)) for length in (3, 1, 4, 1, 5)]
    items[3] = video("again", 7)
    extract_videos(items, backbone, store, rate=2.0, batch_size=4)
    assert backbone.batch_sizes == [4, 4, 4, 2]


@given(
    st.lists(st.integers(0, 9), max_size=7),
    st.integers(1, 6),
    st.sets(st.integers(0, 6)),
    st.integers(1, 3),
)
def test_any_videos_in_batches_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], batch_size: int, failing: set[int], workers: int
) -> None:
    """Each video is stored with its own frames and in order, whatever the batches and the failures around it."""
    store = FeatureStore.create(tmp_path_factory.mktemp("any") / "features.h5", FINGERPRINT)
    values = {str(number): [10 * number + frame for frame in range(length)] for number, length in enumerate(lengths)}
    items: list[VideoItem] = [
        item(name, (broken if int(name) in failing else frames)(*numbers)) for name, numbers in values.items()
    ]
    report = extract_videos(items, FakeBackbone(), store, rate=2.0, batch_size=batch_size, workers=workers)
    expected = [name for name, numbers in values.items() if numbers and int(name) not in failing]
    assert report.done == store.video_ids() == expected
    assert sorted(report.failed) == sorted(set(values) - set(expected))
    for name in expected:
        assert store.video(name).frames[:, 0].tolist() == values[name]


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=9), max_size=5), st.integers(1, 6))
def test_frames_that_change_little_share_a_vector(
    tmp_path_factory: pytest.TempPathFactory, values: list[list[int]], batch_size: int
) -> None:
    """A frame is compared with the last encoded one, not with the one before, so that slow changes are seen."""
    store, backbone = FeatureStore.create(tmp_path_factory.mktemp("still") / "f.h5", FINGERPRINT), FakeBackbone()
    items = [video(str(number), *numbers) for number, numbers in enumerate(values)]
    outcomes = list(stored_videos(items, backbone, store, rate=2.0, batch_size=batch_size, min_change=10 / 255))
    assert [outcome.num_frames for outcome in outcomes] == [len(numbers) for numbers in values]
    num_encoded = 0
    for number, numbers in enumerate(values):
        shown: list[int] = []
        for value in numbers:
            is_new = not shown or abs(value - shown[-1]) >= 10
            num_encoded += is_new
            shown.append(value if is_new else shown[-1])
        assert store.video(str(number)).frames[:, 0].tolist() == shown
        assert len(store.video(str(number)).times) == len(numbers)
    assert sum(backbone.batch_sizes) == num_encoded


def test_the_change_of_two_frames_by_hand() -> None:
    black, spot = np.zeros((3, 64, 64), np.uint8), np.zeros((3, 64, 64), np.uint8)
    spot[:, 8:12, 8:12] = 51  # one pixel of the four in its block, after every fourth is taken
    assert change(black, spot) == pytest.approx(51 / 255 / 4)
    assert change(spot, black) == change(black, spot)


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.integers(1, 70))
def test_the_change_of_two_frames_and_its_slow_twin(seed: int, height: int, width: int) -> None:
    one, other = np.random.default_rng(seed).integers(0, 256, (2, 3, height, width), dtype=np.uint8)
    small = [frame[:, ::4, ::4].astype(float) for frame in (one, other)]
    tall, wide = small[0].shape[1:]
    blocks: dict[tuple[int, int], list[float]] = {}
    starts = [sorted({k * size // 8 for k in range(8)}) for size in (tall, wide)]
    for row in range(tall):
        for column in range(wide):
            place = (sum(row >= at for at in starts[0]), sum(column >= at for at in starts[1]))
            pair = [frame[:, row, column] for frame in small]
            blocks.setdefault(place, []).append(abs(pair[0] - pair[1]).mean())
    assert change(one, other) == pytest.approx(max(sum(of) / len(of) for of in blocks.values()) / 255, rel=1e-5)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_a_least_change_that_is_no_share_is_rejected(store: FeatureStore, wrong: float) -> None:
    with pytest.raises(BadSetting, match="min_change"):
        list(stored_videos([], FakeBackbone(), store, rate=2.0, min_change=wrong))


def test_a_second_run_does_nothing(store: FeatureStore) -> None:
    extract_videos([video("a", 1, 2)], FakeBackbone(), store, rate=2.0)
    before = store.path.read_bytes()
    backbone = FakeBackbone()
    untouched = broken()
    report = extract_videos([item("a", untouched)], backbone, store, rate=2.0)
    assert (report.done, report.skipped, report.failed) == ([], ["a"], {})
    assert backbone.batch_sizes == []
    assert store.path.read_bytes() == before


def test_an_interrupted_run_is_resumed(store: FeatureStore) -> None:
    def interrupt(outcome: Outcome) -> None:
        if outcome.id == "b":
            raise KeyboardInterrupt

    items = {"a": (1, 2), "b": (3, 4), "c": (5, 6), "d": (7, 8)}
    with pytest.raises(KeyboardInterrupt):
        extract_videos(
            [video(name, *values) for name, values in items.items()],
            FakeBackbone(),
            store,
            rate=2.0,
            batch_size=2,
            progress=interrupt,
        )
    again = FeatureStore.open(store.path)
    assert again.video_ids() == ["a", "b"]
    report = extract_videos(
        [video(name, *values) for name, values in items.items()], FakeBackbone(), again, rate=2.0, batch_size=3
    )
    assert (report.done, report.skipped) == (["c", "d"], ["a", "b"])
    for name, values in items.items():
        assert again.video(name).frames[:, 0].tolist() == list(values)


def test_a_failed_video_is_reported_and_the_run_continues(store: FeatureStore) -> None:
    outcomes: list[Outcome] = []
    items: list[VideoItem] = [
        video("a", 1),
        item("broken", broken(2, 3, 4), 1.5),
        item("unreadable", broken()),
        item("empty", frames()),
        item("backwards", iter([(1.0, image_of(1)), (0.0, image_of(2))])),
        item("no length", frames(1), 0.0),
        item("garbled", iter([(0.0,)])),  # type: ignore[list-item]
        video("z", 5, 6),
    ]
    report = extract_videos(items, FakeBackbone(), store, rate=2.0, batch_size=2, progress=outcomes.append)
    assert report.done == store.video_ids() == ["a", "z"]
    assert report.failed["broken"] == report.failed["unreadable"] == "OSError: moov atom not found"
    assert "no frames" in report.failed["empty"]
    assert "times" in report.failed["backwards"]
    assert "0.0 s" in report.failed["no length"]
    assert report.failed["garbled"].startswith("ValueError: ")
    assert {(outcome.id, outcome.kind, outcome.num_frames) for outcome in outcomes} >= {
        ("a", "done", 1),
        ("z", "done", 2),
        ("broken", "failed", 0),
    }
    assert len(outcomes) == len(items)
    report = extract_videos([video("empty", 9)], FakeBackbone(), store, rate=2.0)
    assert report.done == ["empty"]


def test_an_image_that_the_backbone_rejects_fails_its_video_only(tmp_path: Path, backbone: Backbone) -> None:
    fingerprint = replace(backbone.fingerprint, frame_rate=1.0, dtype="float32")
    store = FeatureStore.create(tmp_path / "features.h5", fingerprint)
    empty = np.zeros((0, 4, 3), np.uint8)
    report = extract_videos([item("bad", [(0.0, empty)]), video("good", 1)], backbone, store, rate=1.0)
    assert report.done == ["good"]
    assert "(0, 4, 3)" in report.failed["bad"]


def test_nan_features_fail_their_video_only(store: FeatureStore) -> None:
    class Dividing(FakeBackbone):
        def encode_pixels(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            rows = super().encode_pixels(pixels)
            return np.where(rows == 0, np.float32(np.nan), rows)

    report = extract_videos([video("black", 0, 1), video("grey", 9, 9)], Dividing(), store, rate=2.0)
    assert report.done == ["grey"]
    assert "4 values" in report.failed["black"]


def test_a_duration_that_is_only_known_after_decoding(store: FeatureStore) -> None:
    decoded: list[float] = []

    def decode() -> Iterator[tuple[float, Image]]:
        for time, image in frames(1, 2, 3):
            decoded.append(time)
            yield time, image

    late = VideoItem(id="a", frames=decode(), duration=lambda: max(decoded) + 0.5)
    extract_videos([late], FakeBackbone(), store, rate=2.0)
    assert store.video("a").duration == 1.5


def test_a_repeated_id_is_stored_once(store: FeatureStore) -> None:
    report = extract_videos([video("a", 1), video("a", 2)], FakeBackbone(), store, rate=2.0)
    assert (report.done, report.skipped) == (["a"], ["a"])
    assert store.video("a").frames[0, 0] == 1


def test_a_changed_file_is_encoded_again(store: FeatureStore, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"

    def run(value: int) -> ExtractionReport:
        film = VideoItem(id="a", frames=frames(value), duration=1.0, path=path)
        return extract_videos([film, video("drawn", value)], FakeBackbone(), store, rate=2.0)

    for content, value, done in ((b"1", 1, ["a", "drawn"]), (b"1", 2, []), (b"2", 3, ["a"])):
        path.write_bytes(content)
        assert run(value).done == done
    path.unlink()
    assert run(4).done == []  # the file is missing, and its features are stored
    assert store.video("a").frames[:, 0].tolist() == [3]
    assert store.video("drawn").frames[:, 0].tolist() == [1]


def test_a_damaged_file_is_encoded_again_when_its_modification_time_changes(
    store: FeatureStore, tmp_path: Path
) -> None:
    """A change may fall between the samples that are compared. For an intact file, the samples decide."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"1")

    def run(num_damaged: int) -> ExtractionReport:
        film = VideoItem(
            id="a", frames=frames(num_damaged), duration=1.0, path=path, damage=lambda: Damage(num_packets=num_damaged)
        )
        return extract_videos([film], FakeBackbone(), store, rate=2.0)

    for written, num_damaged, done in ((1, 7, True), (1, 5, False), (2, 3, True), (3, 0, True), (4, 2, False)):
        os.utime(path, (written, written))
        assert run(num_damaged).done == (["a"] if done else [])
    assert store.video("a").frames[:, 0].tolist() == [0]


def test_a_backbone_that_takes_stacks_of_frames(store: FeatureStore) -> None:
    class Mean(FakeBackbone):
        window = 2

        def encode_pixels(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            assert pixels.shape[1:] == (2, 3, 8, 8)
            return super().encode_pixels(pixels.astype(np.float32).mean(1))

    backbone = Mean()
    extract_videos([item("a", frames(1, 3, 5, 7, 9))], backbone, store, rate=2.0, batch_size=5)
    assert store.video("a").frames[:, 0].tolist() == [2, 6, 9]
    assert store.video("a").times.tolist() == [0.0, 1.0, 2.0]
    assert backbone.batch_sizes == [2, 1]  # a batch counts frames
    extract_videos([item("b", frames(1, 3, 5))], backbone, store, rate=2.0, batch_size=1)
    assert backbone.batch_sizes == [2, 1, 1, 1]


def test_another_rate_or_backbone_is_rejected_before_decoding(store: FeatureStore) -> None:
    with pytest.raises(FingerprintMismatch, match=r"frame_rate 2.0 != 1.0"):
        extract_videos([item("a", broken())], FakeBackbone(), store, rate=1.0)
    other = FakeBackbone()
    other.fingerprint = replace(FINGERPRINT, weights="f" * 64)
    for extract in (lambda: extract_videos([], other, store, rate=2.0), lambda: extract_texts([], other, store)):
        with pytest.raises(FingerprintMismatch, match=r"weights 000000000000… != ffffffffffff…"):
            extract()


def test_files_are_closed_after_an_error(store: FeatureStore) -> None:
    closed: list[str] = []

    def opened(name: str, count: int) -> Iterator[tuple[float, Image]]:
        try:
            yield from frames(*range(count))
        finally:
            closed.append(name)

    class Failing(FakeBackbone):
        def encode_pixels(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            raise RuntimeError("out of memory")

    items: list[VideoItem] = [item("a", opened("a", 3)), item("b", opened("b", 1000))]
    with pytest.raises(RuntimeError, match="out of memory"):
        extract_videos(items, Failing(), store, rate=2.0, batch_size=4)
    assert closed == ["a", "b"]
    assert store.video_ids() == []


@pytest.mark.parametrize("error", [RuntimeError("the list of videos ends here"), KeyboardInterrupt(), SystemExit()])
def test_an_error_of_the_items_ends_the_run_and_keeps_stored_videos(store: FeatureStore, error: BaseException) -> None:
    def items() -> Iterator[VideoItem]:
        yield video("a", 1, 2)
        raise error

    with pytest.raises(type(error)):
        extract_videos(items(), FakeBackbone(), store, rate=2.0, batch_size=1)
    assert store.video_ids() == ["a"]


def test_an_unwritable_store_ends_the_run(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise BadStore("the disk is full")

    monkeypatch.setattr(store, "add_video", lambda *_: refuse(store.path))
    many: list[VideoItem] = [video(str(number), *range(50)) for number in range(50)]
    with pytest.raises(BadStore, match="the disk is full"):
        extract_videos(many, FakeBackbone(), store, rate=2.0, batch_size=2)
    monkeypatch.setattr(store, "add_texts", lambda *_: refuse(store.path))
    with pytest.raises(BadStore, match="the disk is full"):
        extract_texts([("q", "a text")], FakeBackbone(), store)


# ---------------------------------------------------------------- workers


def test_videos_are_decoded_in_parallel(store: FeatureStore) -> None:
    """Each video waits until the other has started."""
    both = threading.Barrier(2)

    def waiting(value: int) -> Iterator[tuple[float, Image]]:
        both.wait(10)
        yield from frames(value)

    items = [item("a", waiting(1)), item("b", waiting(2))]
    assert extract_videos(items, FakeBackbone(), store, rate=2.0, workers=2).done == ["a", "b"]


def test_videos_are_stored_in_the_order_of_the_items(store: FeatureStore) -> None:
    """The first video is the last to be complete."""
    others = threading.Event()

    def slow() -> Iterator[tuple[float, Image]]:
        yield 0.0, image_of(1)
        assert others.wait(10)
        yield 0.5, image_of(2)

    def last() -> Iterator[tuple[float, Image]]:
        yield from frames(7)
        others.set()

    outcomes: list[Outcome] = []
    items = [item("slow", slow()), video("b", 3), item("broken", broken()), video("b", 4), item("last", last())]
    extract_videos(items, FakeBackbone(), store, rate=2.0, batch_size=1, workers=2, progress=outcomes.append)
    assert store.video_ids() == ["slow", "b", "last"]
    assert [outcome.id for outcome in outcomes] == ["slow", "b", "broken", "b", "last"]


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_many_videos_wait_for_a_slow_one_without_deadlock(store: FeatureStore, batch_size: int) -> None:
    """A long film comes before 150 clips: some of them wait for it, the others are not started."""
    begun = 0
    enough = threading.Event()

    def film() -> Iterator[tuple[float, Image]]:
        yield 0.0, image_of(1)
        assert enough.wait(10)
        yield 0.5, image_of(2)

    def clip(number: int) -> Iterator[tuple[float, Image]]:
        nonlocal begun
        begun += 1
        if begun == MOST_IN_PROGRESS - 1:
            enough.set()
        yield from frames(number % 200)

    items = [item("film", film()), *(item(str(number), clip(number)) for number in range(150))]
    report = extract_videos(items, FakeBackbone(), store, rate=2.0, batch_size=batch_size, workers=2)
    assert report.done == store.video_ids() == ["film", *map(str, range(150))]


def test_a_worker_that_exits_raises_an_error_with_the_id_of_its_video(store: FeatureStore) -> None:
    def deadly() -> Iterator[tuple[float, Image]]:
        yield from frames(1)
        raise SystemExit("enough")

    items = [video("a", 1), item("deadly", deadly()), *(video(str(number), *range(50)) for number in range(50))]
    with pytest.raises(RuntimeError, match="'deadly' raised SystemExit: enough"):
        extract_videos(items, FakeBackbone(), store, rate=2.0, batch_size=1, workers=2)
    assert "a" in store.video_ids()


def test_zero_workers_are_rejected(store: FeatureStore) -> None:
    with pytest.raises(BadSetting, match="workers is 0"):
        extract_videos([], FakeBackbone(), store, rate=2.0, workers=0)


# ---------------------------------------------------------------- quarantine


def unreadable(error: type[Exception]) -> Iterator[tuple[float, Image]]:
    yield from frames(1)
    raise error("a.mp4 is no video")


def test_an_unreadable_file_is_not_retried_until_it_changes(store: FeatureStore, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"1")

    def run(images: Iterator[tuple[float, Image]], *, retry: bool = False) -> ExtractionReport:
        bad = VideoItem(id="a", frames=images, duration=1.0, path=path)
        quarantine = Quarantine(store.path, retry=retry)
        return extract_videos([bad, video("b", 1)], FakeBackbone(), store, rate=2.0, quarantine=quarantine)

    first = run(unreadable(UnreadableVideo))
    assert (first.done, first.failed, first.not_retried) == (["b"], {"a": "a.mp4 is no video"}, [])
    again = run(frames(7))
    assert (again.skipped, again.failed, again.not_retried) == (["b"], first.failed, ["a"])
    assert run(unreadable(UnreadableVideo), retry=True).not_retried == []
    path.write_bytes(b"22")
    changed = run(frames(7))
    assert (changed.done, changed.failed, changed.outdated) == (["a"], {}, [])
    assert not Quarantine(store.path).path.exists()
    # The store keeps the features of the readable version, and every report says so.
    path.write_bytes(b"333")
    for _ in range(2):
        broken = run(unreadable(UnreadableVideo))
        assert (list(broken.failed), broken.outdated, store.has_video("a")) == (["a"], ["a"], True)


@pytest.mark.parametrize("error", [MissingVideo, OSError, BadFeatures])
def test_a_temporary_failure_is_retried(store: FeatureStore, tmp_path: Path, error: type[Exception]) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"1")
    quarantine = Quarantine(store.path)
    for images in (unreadable(error), frames(7)):
        bad = VideoItem(id="a", frames=images, duration=1.0, path=path)
        report = extract_videos([bad], FakeBackbone(), store, rate=2.0, quarantine=quarantine)
    assert report.done == ["a"]


def test_damage_is_reported(store: FeatureStore) -> None:
    outcomes: list[Outcome] = []
    hurt = VideoItem(id="a", frames=frames(1, 2), duration=1.0, damage=lambda: Damage(num_packets=3, cut=(1.0, 9.5)))
    report = extract_videos([hurt, video("b", 1)], FakeBackbone(), store, rate=2.0, progress=outcomes.append)
    assert (report.done, report.damaged) == (
        ["a", "b"],
        {"a": "3 packets could not be decoded, it ends at 1.0 s of 9.5 s"},
    )
    assert [bool(outcome.damage) for outcome in outcomes] == [True, False]


# ---------------------------------------------------------------- threads


def test_the_queue_is_bounded() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    ahead = _in_background(iter([source()]), workers=1, limit=3, slots=threading.Semaphore(2))
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()
    assert len(made) <= 2 + 3 + 2  # taken, waiting, and at either end of the queue


def test_decoding_overlaps_encoding(store: FeatureStore) -> None:
    """The thread decodes the second batch while the first is encoded: each waits for the other."""
    encoding, decoded = threading.Event(), threading.Event()

    def items() -> Iterator[VideoItem]:
        yield video("a", 1, 2)
        assert encoding.wait(10)
        decoded.set()
        yield video("b", 3)

    class Waiting(FakeBackbone):
        def encode_pixels(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            encoding.set()
            assert decoded.wait(10)
            return super().encode_pixels(pixels)

    assert extract_videos(items(), Waiting(), store, rate=2.0, batch_size=2).done == ["a", "b"]


def test_batches_give_the_same_features_as_single_videos(tmp_path: Path, backbone: Backbone) -> None:
    generator = np.random.default_rng(0)
    videos = {
        name: [generator.integers(0, 256, (40, 60, 3), np.uint8) for _ in range(length)]
        for name, length in {"a": 3, "b": 1, "c": 6}.items()
    }
    fingerprint = replace(backbone.fingerprint, frame_rate=1.0, dtype="float32")
    store = FeatureStore.create(tmp_path / "features.h5", fingerprint)
    items = [item(name, enumerate(images), float(len(images))) for name, images in videos.items()]
    assert extract_videos(items, backbone, store, rate=1.0, batch_size=4).done == ["a", "b", "c"]
    for name, images in videos.items():
        np.testing.assert_allclose(store.video(name).frames, backbone.encode_images(images), atol=1e-5, rtol=1e-5)
    texts = {"q1": "the red ball", "q2": "a boat", "q3": "the ball falls"}
    assert sorted(extract_texts(texts.items(), backbone, store, batch_size=2).done) == ["q1", "q2", "q3"]
    for name, text in texts.items():
        expected = backbone.encode_texts([text])[0]
        np.testing.assert_allclose(store.text(name).words, expected.words, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(store.text(name).sentence, expected.sentence, atol=1e-5, rtol=1e-5)


def test_texts_are_stored_and_skipped(store: FeatureStore) -> None:
    backbone = FakeBackbone()
    queries = [("q1", "a long sentence"), ("q2", "hi"), ("q3", "a text"), ("q2", "hi")]
    report = extract_texts(queries, backbone, store, batch_size=2)
    assert (report.done, report.skipped, report.failed) == (["q2", "q3", "q1"], ["q2"], {})  # alike lengths together
    assert backbone.batch_sizes == [2, 1]
    assert store.text("q2").words[:, 0].tolist() == [float(ord(letter)) for letter in "^hi$"]
    outcomes: list[Outcome] = []
    report = extract_texts([*queries, ("q4", "new")], backbone, store, progress=outcomes.append)
    assert (report.done, report.skipped) == (["q4"], ["q1", "q2", "q3", "q2"])
    assert [outcome.kind for outcome in outcomes] == ["skipped"] * 4 + ["done"]


def test_a_changed_text_is_encoded_again(store: FeatureStore) -> None:
    """Ids may be line numbers, and then an inserted line changes all following texts."""
    backbone = FakeBackbone()
    extract_texts([("1", "a dog"), ("2", "a cat")], backbone, store)
    report = extract_texts([("1", "a fish"), ("2", "a dog"), ("3", "a cat")], backbone, store)
    assert (sorted(report.done), report.skipped) == (["1", "2", "3"], [])
    for text_id, text in (("1", "a fish"), ("2", "a dog"), ("3", "a cat")):
        (expected,) = backbone.encode_texts([text])
        assert np.array_equal(store.text(text_id).words, expected.words)
    again = extract_texts([("1", "a fish"), ("2", "a dog"), ("3", "a cat")], backbone, store)
    assert (again.done, sorted(again.skipped)) == ([], ["1", "2", "3"])


def test_a_failed_text_is_reported_and_the_rest_of_its_batch_is_stored(store: FeatureStore) -> None:
    report = extract_texts([("q1", "fine"), ("q2", "bad"), ("q3", "well")], FakeBackbone(), store)
    assert sorted(report.done) == sorted(store.text_ids()) == ["q1", "q3"]
    assert report.failed == {"q2": "RuntimeError: a text that the tokenizer refuses"}


def test_two_texts_with_one_id_are_rejected(store: FeatureStore) -> None:
    with pytest.raises(BadAnnotation, match=r"'q' .*'one' and 'two'"):
        extract_texts([("q", "one"), ("q", "two")], FakeBackbone(), store)


def test_out_of_order_a_short_video_does_not_wait_for_a_long_one(store: FeatureStore) -> None:
    stored = threading.Event()

    def long() -> Iterator[tuple[float, Image]]:
        yield from frames(1, 2)
        assert stored.wait(30)
        yield 1.0, image_of(3)

    items = [item("long", long()), video("short", 5, 6)]
    done = []
    for outcome in stored_videos(items, FakeBackbone(), store, rate=2.0, batch_size=2, workers=2, in_order=False):
        assert store.has_video(outcome.id)
        done.append(outcome.id)
        stored.set()
    assert done == ["short", "long"]
    assert store.video("long").frames[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("batch_size", [64, 1000])
def test_out_of_order_more_videos_than_slots(store: FeatureStore, batch_size: int) -> None:
    names = [str(number) for number in range(2 * MOST_IN_PROGRESS + 3)]
    items = (video(name, 1) for name in names)
    outcomes = stored_videos(items, FakeBackbone(), store, rate=2.0, batch_size=batch_size, workers=2, in_order=False)
    assert sorted(outcome.id for outcome in outcomes) == sorted(names)


def test_closing_the_generator_ends_the_threads(store: FeatureStore) -> None:
    outcomes = stored_videos((video(str(number), 1) for number in range(500)), FakeBackbone(), store, rate=2.0)
    assert next(outcomes).id == "0"
    outcomes.close()
    assert store.video_ids() == ["0"]
    assert not [thread for thread in threading.enumerate() if thread.name == "midreel-decode"]


def test_lasting_and_temporary_failures(store: FeatureStore) -> None:
    def failing(error: Exception) -> Iterator[tuple[float, Image]]:
        yield from frames(1)
        raise error

    outcomes: dict[str, Outcome] = {}
    items = [
        item("text", failing(UnreadableVideo("no video"))),
        item("away", failing(MissingVideo("not there"))),
        item("disk", failing(OSError("input/output"))),
    ]
    extract_videos(
        items, FakeBackbone(), store, rate=2.0, progress=lambda outcome: outcomes.update({outcome.id: outcome})
    )
    assert {name: outcome.lasting for name, outcome in outcomes.items()} == {"text": True, "away": False, "disk": False}


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_changes_while_it_is_read_is_retried(
    store: FeatureStore, tmp_path: Path, is_replaced: bool
) -> None:
    path, quarantine = tmp_path / "a.mp4", Quarantine(tmp_path / "features.h5")
    path.write_bytes(b"what was there before")

    def changing() -> Iterator[tuple[float, Image]]:
        yield from frames(1, 2)
        if is_replaced:
            other = tmp_path / "other"
            other.write_bytes(b"what is there now")
            other.replace(path)
        yield 1.0, image_of(3)
        if not is_replaced:
            path.write_bytes(b"what is there now")
            raise UnreadableVideo("the end is missing")

    def run(images: Iterable[tuple[float, Image]]) -> ExtractionReport:
        return extract_videos(
            [VideoItem(id="a", frames=images, duration=1.5, path=path)],
            FakeBackbone(),
            store,
            rate=2.0,
            quarantine=quarantine,
        )

    report = run(changing())
    assert (list(report.failed), store.video_ids(), len(quarantine)) == (["a"], [], 0)
    assert "changed" in report.failed["a"]
    assert run(frames(4, 5)).done == ["a"]
    assert store.video("a").frames[:, 0].tolist() == [4, 5]
