"""The ONNX graphs compute what the methods do, whatever the size of the batch and the length of the queries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from midreel import onnx_export
from midreel.errors import BadExport, MissingPackage
from midreel.methods import METHODS, ClipZeroShot
from midreel.methods.base import Method
from midreel.onnx_export import FACTS, QUERY_ENCODER, VIDEO_ENCODER, write_encoders
from midreel.types import QueryBatch, VideoBatch

WIDTHS = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2}
SMALL = {"num_frames": 12, "num_clips": 6}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "msc": ("msc", WIDTHS | SMALL | {"max_words": 9, "min_clips": 2}),
    "msc, uniform": ("msc", WIDTHS | SMALL | {"max_words": 9, "min_clips": 2, "clips": "uniform"}),
    "msc, released": ("msc", WIDTHS | {"max_words": 9, "variant": "released"}),
    "gmmformer_v2": ("gmmformer_v2", WIDTHS | SMALL | {"max_words": 9}),
    "clip_zero_shot": ("clip_zero_shot", SMALL | {"width": 6, "clips": "order_preserving", "clip_weight": 0.4}),
}
INPUTS = {
    "msc": ({"frames", "clip_of_frame"}, {"words", "mask"}),
    "msc, uniform": ({"frames", "clip_of_frame"}, {"words", "mask"}),
    "msc, released": ({"frames", "clip_of_frame", "clips"}, {"words", "mask"}),
    "gmmformer_v2": ({"frames", "mask", "clips"}, {"words", "mask"}),
    "clip_zero_shot": ({"frames", "clip_of_frame"}, {"sentence"}),
}


def new_method(name: str) -> Method:
    """With large weights, so that an error would show."""
    kind, settings = CONFIGS[name]
    method = METHODS[kind](METHODS[kind].Config(**settings))
    with torch.no_grad():
        for weight in method.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
    return method.eval()


class Exported:
    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.name, self.folder, self.method = name, folder, new_method(name)
        self.differences = write_encoders(self.method, folder, {"backbone": "a CLIP"})
        self.facts = json.loads((folder / FACTS).read_text())
        self.sessions = {file: onnxruntime.InferenceSession(folder / file) for file in (VIDEO_ENCODER, QUERY_ENCODER)}

    def run(self, file: str, **inputs: Tensor | None) -> dict[str, np.ndarray[Any, Any]]:
        session = self.sessions[file]
        feed = {port.name: inputs[port.name].numpy() for port in session.get_inputs()}  # type: ignore[union-attr]
        return dict(zip([port.name for port in session.get_outputs()], session.run(None, feed), strict=True))

    def features(self, *shape: int) -> Tensor:
        return torch.randn(*shape, getattr(self.method.config, "video_width", self.method.config.width))


@pytest.fixture(scope="module", params=CONFIGS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("onnx"))


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1,), (12,), (128,), (3, 5), (11, 12, 13, 40, 1, 300, 127)])
def test_videos_of_any_number_and_length(exported: Exported, lengths: tuple[int, ...]) -> None:
    batches = [exported.method.prepare_videos(exported.features(1, length)) for length in lengths]
    videos = VideoBatch.join(batches)
    found = exported.run(VIDEO_ENCODER, **vars(videos))
    for branch, tokens in exported.method.encode_videos(videos).items():
        for part, expected in vars(tokens).items():
            close(found[f"{branch}_{part}"], expected)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1,), (9,), (4,), (1, 1, 1), (9, 1, 5, 2), (3, 7)])
def test_queries_of_any_number_and_length(exported: Exported, lengths: tuple[int, ...]) -> None:
    config = exported.method.config
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    words = torch.randn(*mask.shape, getattr(config, "text_width", config.width))
    words[~mask] = torch.nan  # whatever lies behind the last word
    queries = QueryBatch(words=words, mask=mask, sentence=torch.randn(len(lengths), config.width))
    found = exported.run(QUERY_ENCODER, **vars(queries))
    for branch, expected in exported.method.encode_queries(queries).items():
        close(found[f"{branch}_vectors"], expected)


def close(found: np.ndarray[Any, Any], expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


def test_what_a_program_must_know(exported: Exported) -> None:
    facts, config = exported.facts, exported.method.config
    assert {path.name for path in exported.folder.iterdir()} == {VIDEO_ENCODER, QUERY_ENCODER, FACTS}
    assert facts["config"] == vars(config)
    assert facts["features"] == {"backbone": "a CLIP"}
    assert facts["branch_weights"] == exported.method.branch_weights
    of_videos, of_queries = INPUTS[exported.name]
    assert set(facts["videos"]["inputs"]) == of_videos
    assert set(facts["queries"]["inputs"]) == of_queries
    frames = facts["videos"]["inputs"]["frames"]
    width = getattr(config, "video_width", config.width)
    assert frames == {"type": "tensor(float)", "shape": ["batch", config.num_frames, width]}
    if "words" in of_queries:
        assert facts["queries"]["inputs"]["mask"] == {"type": "tensor(bool)", "shape": ["batch", "words"]}
    assert list(facts["videos"]["outputs"]) == [
        f"{branch}_{part}" for branch in ("clip", "frame") for part in ("vectors", "mask", "spans")
    ]
    assert list(facts["queries"]["outputs"]) == ["clip_vectors", "frame_vectors"]
    assert facts["differences"] == exported.differences
    assert all(0 <= difference < 1e-5 for difference in exported.differences.values())


def test_a_graph_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = ClipZeroShot(ClipZeroShot.Config(width=4, num_frames=4, num_clips=2))
    original: Callable[..., Any] = onnx_export._Graph._difference
    monkeypatch.setattr(onnx_export._Graph, "_difference", lambda self, parts: original(self, parts) + 2e-4)
    with pytest.raises(BadExport, match=r"video_encoder.onnx differs from torch by 2.0e-04, expected at most 1e-04;"):
        write_encoders(method, tmp_path)
    monkeypatch.setattr(onnx_export._Graph, "_difference", lambda self, parts: float("nan"))
    with pytest.raises(BadExport, match="differs from torch by nan"):
        write_encoders(method, tmp_path)


def test_results_of_another_kind_are_infinitely_far() -> None:
    ones = np.ones((2, 3), np.float32)
    assert onnx_export._distance(ones, ones + 0.5) == 0.5
    assert onnx_export._distance(ones, ones[:1]) == float("inf")
    assert onnx_export._distance(ones, ones.astype(np.float64)) == float("inf")
    assert onnx_export._distance(ones > 0, ones > 0) == 0
    assert onnx_export._distance(ones > 0, ones > 1) == float("inf")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name == "onnxruntime" else object())
    message = r"onnxruntime cannot be imported, expected for ONNX; run: pip install 'midreel\[onnx\]'"
    with pytest.raises(MissingPackage, match=message):
        write_encoders(ClipZeroShot(ClipZeroShot.Config(width=4)), tmp_path)


def test_a_method_in_training_stays_so(tmp_path: Path) -> None:
    method = new_method("msc").train()
    write_encoders(method, tmp_path)
    assert method.training
