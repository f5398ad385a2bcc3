"""Streamed features have the bits of features in memory, and need little memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.errors import MissingFeatures
from midreel.evaluation.evaluate import evaluate
from midreel.methods import METHODS
from midreel.training import streaming
from midreel.training.data import FeatureSet
from midreel.training.fit import fit, read_lines
from midreel.training.streaming import StreamedVideos, ahead
from tests.methods.small import TRAINED, small_config
from tests.training.worlds import World, recipe


def parts(batch: Any) -> dict[str, torch.Tensor]:
    return {name: part for name, part in vars(batch).items() if part is not None}


@pytest.mark.parametrize("name", [*TRAINED, "clip_zero_shot"])
def test_streamed_batches_have_the_same_bits(name: str) -> None:
    method, world = METHODS[name](small_config(name)), World(7)
    kept, streamed = (FeatureSet.prepare(method, world.split, world, stream=stream) for stream in (False, True))
    assert isinstance(streamed.videos, StreamedVideos)
    assert len(streamed.videos) == len(kept.videos) == 7
    assert streamed.durations.equal(kept.durations)
    chosen = torch.tensor([5, 0, 6])
    for one, other in (
        *zip(kept.batches(3), streamed.batches(3), strict=True),
        (kept.batch(chosen), streamed.batch(chosen)),
    ):
        for side in ("videos", "queries"):
            expected, found = parts(getattr(one, side)), parts(getattr(other, side))
            assert expected.keys() == found.keys()
            assert all(part.equal(found[key]) for key, part in expected.items())
        assert one.video_of_query.equal(other.video_of_query)


def test_a_streamed_training_has_the_same_bits(tmp_path: Path) -> None:
    settings, world = recipe(epochs=2), World()
    for stream in (False, True):
        torch.manual_seed(settings.seed)
        method = METHODS["msc"](settings.config)
        data = FeatureSet.prepare(method, world.split, world, stream=stream)

        def validate(trained: Any, data: FeatureSet = data) -> dict[str, float]:
            return evaluate(trained, data.video_batches(4), data.query_batches(7), data.video_of_query).recalls

        fit(method, data, validate, settings, tmp_path / str(stream))
    kept, streamed = (list(read_lines(tmp_path / str(stream) / "metrics.jsonl")) for stream in (False, True))
    assert kept == streamed
    files = [(tmp_path / str(stream) / "last" / "model.safetensors").read_bytes() for stream in (False, True)]
    assert files[0] == files[1]


def test_what_does_not_fit_in_memory_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    method, world = METHODS["msc"](small_config("msc")), World()
    assert not isinstance(FeatureSet.prepare(method, world.split, world).videos, StreamedVideos)
    monkeypatch.setattr(streaming, "SHARE_OF_MEMORY", 1e-9)
    assert isinstance(FeatureSet.prepare(method, world.split, world).videos, StreamedVideos)


def test_the_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit() -> int:
        return next(exponent for exponent in range(80) if not streaming.fits_in_memory(2**exponent))

    alone = limit()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert limit() == alone - 2


def test_missing_features_are_found_before_the_training() -> None:
    method, world = METHODS["msc"](small_config("msc")), World()

    class Incomplete:
        text = world.text

        def video(self, video_id: str) -> Any:
            if video_id == "video 9":
                raise MissingFeatures(video_id)
            return world.video(video_id)

    with pytest.raises(MissingFeatures, match="video 9"):
        FeatureSet.prepare(method, world.split, Incomplete(), stream=True)


def test_ahead_is_in_order_and_raises_in_its_place() -> None:
    assert list(ahead(lambda key: key * 2, range(4))) == [0, 2, 4, 6]
    assert list(ahead(str, [])) == []
    found = ahead(lambda key: 6 // key, [3, 2, 0, 1])
    assert [next(found), next(found)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(found)


PEAK = """
import sys
import numpy as np, torch
from midreel.features import FeatureStore
from midreel.methods import METHODS
from midreel.methods.msc import MSCConfig
from midreel.training.data import FeatureSet
from midreel.types import Query, Split

store = FeatureStore.open(sys.argv[1])
ids = tuple(store.video_ids())
split = Split(video_ids=ids, queries=tuple(Query(id=f"{each}#0", text="", video_id=each) for each in ids))
method = METHODS["msc"](MSCConfig(video_width=1024, text_width=8, width=8, num_heads=2))
def megabytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

before = megabytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of the imports
data = FeatureSet.prepare(method, split, store, stream=sys.argv[2] == "True")
total = sum(float(batch.videos.frames.sum()) for batch in data.batches(16))
print(megabytes("VmHWM") - before, total)
"""


@pytest.mark.slow
def test_streaming_needs_the_memory_of_a_few_batches(tmp_path: Path) -> None:
    """In memory, 400 videos of 128 x 1024 numbers take 200 MB. A batch of 16 takes 8 MB."""
    import numpy as np

    from midreel.features import FeatureStore, Fingerprint
    from midreel.types import TextFeatures, VideoFeatures

    fingerprint = Fingerprint(
        backbone="b", weights="", width=1024, frame_rate=1.0, dtype="float16", word_width=8, sentence_width=8
    )
    random = np.random.default_rng(0)
    with FeatureStore.create(tmp_path / "features.h5", fingerprint) as store:
        for number in range(400):
            frames = random.standard_normal((40, 1024)).astype(np.float32)
            times = np.arange(40, dtype=np.float32)
            store.add_video(f"v{number}", VideoFeatures(frames=frames, times=times, duration=40.0))
        words = {f"v{number}#0": np.ones((3, 8), np.float32) for number in range(400)}
        store.add_texts({key: TextFeatures(words=each, sentence=each[0]) for key, each in words.items()})
    peaks, totals = [], []
    for stream in (False, True):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "features.h5"), str(stream)]
        peak, total = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        peaks.append(float(peak))
        totals.append(total)
    assert totals[0] == totals[1]
    assert peaks[0] > 190
    assert peaks[1] < 80
