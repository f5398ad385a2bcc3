"""The ONNX graphs compute the same as the methods, for any batch size and query length."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from midreel.errors import BadBatch, BadModel, BadPackage
from midreel.experiments.model_export import export_model
from midreel.index.embedded import quantise
from midreel.library.encoder import Encoder
from midreel.methods import METHODS, ClipZeroShot, load_method, onnx
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.encoder import MethodEncoder
from midreel.methods.model_files import FACTS, QUERY_ENCODER, VIDEO_ENCODER
from midreel.methods.onnx import write_encoders
from midreel.methods.onnx_encoder import OnnxEncoder, fits
from midreel.methods.untrained import ENCODERS, untrained
from midreel.types import TextFeatures, Tokens
from tests import ROOT
from tests.conftest import ExportedRun
from tests.methods.small import TRAINED, perturbed, small_config
from tests.similar import give_similarities

WIDTHS = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9}
# Settings by name. Every method is tested, with these settings or with small ones.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in METHODS} | {
    "msc, released": ("msc", WIDTHS | {"variant": "released", "num_frames": 128, "num_clips": 32, "min_clips": 5}),
    "tf_prvr": ("tf_prvr", {"num_frames": 20}),
    "clip_zero_shot": ("clip_zero_shot", {"clips": "order_preserving", "clip_weight": 0.4}),
}
CAPPED = ({"frames", "mask", "clips"}, {"words", "mask"})
INPUTS: dict[str, tuple[set[str], set[str]]] = {
    "msc, of a run": ({"frames", "clip_of_frame"}, {"words", "mask"}),
    "msc": ({"frames", "clip_of_frame"}, {"words", "mask"}),
    "msc, released": ({"frames", "clip_of_frame", "clips"}, {"words", "mask"}),
    "gmmformer": CAPPED,
    "gmmformer_v2": CAPPED,
    "ms_sl": CAPPED,
    "bgm_net": CAPPED,
    "proto_prvr": CAPPED,
    "arl": ({"frames", "mask"}, {"words", "mask"}),
    "dl_dkd": ({"frames", "mask"}, {"words", "mask"}),
    "amdnet": ({"frames"}, {"sentence"}),
    "tf_prvr": ({"mask", "clip_of_frame", "clips"}, {"sentence"}),
    "clip_zero_shot": ({"frames", "clip_of_frame"}, {"sentence"}),
    "clip_residual": ({"frames", "clip_of_frame"}, {"sentence"}),
    "msc_residual": ({"frames", "clip_of_frame"}, {"words", "mask", "sentence"}),
}


def new_method(name: str) -> Method:
    """A method with large weights, which make errors visible."""
    torch.manual_seed(0)
    kind, settings = CONFIGS[name]
    return perturbed(METHODS[kind](small_config(kind, **settings)))


class Graphs:
    """A model's folder with its graphs, ready to run."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.method = name, folder, load_method(folder)
        self.facts = json.loads((folder / FACTS).read_text())
        self.sessions = {file: onnxruntime.InferenceSession(folder / file) for file in (VIDEO_ENCODER, QUERY_ENCODER)}

    def run(self, file: str, **inputs: Tensor | None) -> dict[str, np.ndarray[Any, Any]]:
        session = self.sessions[file]
        feed = {port.name: inputs[port.name].numpy() for port in session.get_inputs()}  # type: ignore[union-attr]
        return dict(zip([port.name for port in session.get_outputs()], session.run(None, feed), strict=True))

    def features(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self._width("video_width"))

    def words(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self._width("text_width"))

    def _width(self, setting: str) -> int:
        """A method without the setting takes features of the width of its sentences."""
        return int(getattr(self.method.config, setting, self.method.sentence_width))


UNTRAINED = [name for name in METHODS if name not in TRAINED]


@pytest.fixture(  # a network takes half a minute to export
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] * (name not in UNTRAINED)) for name in ("msc, of a run", *CONFIGS)
    ],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    if request.param not in CONFIGS:
        run: ExportedRun = request.getfixturevalue("exported_run")
        return Graphs(request.param, run.folder)
    folder = tmp_path_factory.mktemp("onnx")
    new_method(request.param).save_pretrained(folder / "model")
    export_model(folder / "model", folder / "exported", onnx=True)
    return Graphs(request.param, folder / "exported")


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1,), (12,), (128,), (3, 5), (11, 12, 13, 40, 1, 300, 127)])
@pytest.mark.slow
def test_videos_of_any_number_and_length(exported: Graphs, lengths: tuple[int, ...]) -> None:
    batches = [exported.method.prepare_videos(exported.features(1, length)) for length in lengths]
    videos = VideoBatch.join(batches, len(lengths))
    found = exported.run(VIDEO_ENCODER, **vars(videos))
    for branch, tokens in exported.method.encode_videos(videos).items():
        for part, expected in vars(tokens).items():
            close(found[f"{branch}_{part}"], expected)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(1,), (9,), (4,), (1, 1, 1), (9, 1, 5, 2), (3, 7)])
def test_queries_of_any_number_and_length(exported: Graphs, lengths: tuple[int, ...]) -> None:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    words = exported.words(*mask.shape)
    words[~mask] = torch.nan  # padding may contain anything
    queries = QueryBatch(words=words, mask=mask, sentence=torch.randn(len(lengths), exported.method.sentence_width))
    found = exported.run(QUERY_ENCODER, **vars(queries))
    for branch, expected in exported.method.encode_queries(queries).items():
        close(found[f"{branch}_vectors"], expected)


def close(found: np.ndarray[Any, Any], expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


def test_the_facts_in_encoders_json(exported: Graphs) -> None:
    facts, config = exported.facts, exported.method.config
    assert facts["config"] == vars(config)
    assert facts["branch_weights"] == exported.method.branch_weights
    assert facts["similarities"] == {name: vars(form) for name, form in exported.method.similarities.items()}
    of_videos, of_queries = (set(facts[part]["inputs"]) for part in ("videos", "queries"))
    assert (of_videos, of_queries) == INPUTS.get(exported.name, (of_videos, of_queries))
    frames = facts["videos"]["inputs"]["frames" if "frames" in of_videos else "clips"]
    shape = ["batch", facts["videos"]["num_frames"], exported.features(1).numel()]
    assert frames == {"type": "tensor(float)", "shape": shape}
    if "words" in of_queries:
        assert facts["queries"]["inputs"]["mask"] == {"type": "tensor(bool)", "shape": ["batch", "words"]}
    assert list(facts["videos"]["outputs"]) == [
        f"{branch}_{part}" for branch in exported.method.branches for part in ("vectors", "mask", "spans")
    ]
    assert list(facts["queries"]["outputs"]) == [f"{branch}_vectors" for branch in exported.method.branches]
    assert set(facts["differences"]) == {VIDEO_ENCODER, QUERY_ENCODER}
    assert all(0 <= difference < 1e-5 for difference in facts["differences"].values())


def test_the_graphs_contain_no_local_paths(exported: Graphs) -> None:
    for name in (VIDEO_ENCODER, QUERY_ENCODER):
        assert b".py" not in (exported.folder / name).read_bytes()


# ---------------------------------------------------------------- midreel's own encoder of the graphs


@pytest.fixture
def encoders(exported: Graphs) -> tuple[Encoder, MethodEncoder]:
    """The encoder that a library uses without torch, and the one that it uses with torch."""
    settings = exported.facts["config"]
    free = untrained(settings) if settings["method"] in ENCODERS else OnnxEncoder(exported.folder)
    return free, MethodEncoder(exported.method)


def test_the_encoder_without_torch_has_the_facts_and_files_of_the_method(
    exported: Graphs, encoders: tuple[Encoder, MethodEncoder]
) -> None:
    free, method = encoders
    assert fits(exported.folder)
    assert method.files().items() <= free.files().items()
    for name in ("width", "num_frames", "branch_weights", "curve_weights", "similarities"):
        assert getattr(free, name) == getattr(method, name), name


@pytest.mark.parametrize("length", [1, 2, 5, 12, 40, 129, 300])
def test_the_encoder_without_torch_encodes_videos_as_the_method_does(
    exported: Graphs, encoders: tuple[Encoder, MethodEncoder], length: int
) -> None:
    if exported.name == "msc, released" and length < exported.method.num_frames:
        pytest.skip("equal frames tie, and the released code takes any of them")
    free, method = encoders
    torch.manual_seed(length)
    frames = exported.features(3, length).numpy()
    found, expected = free.encode_videos(frames), method.encode_videos(frames)
    assert list(found) == list(expected)
    for branch, tokens in expected.items():
        for part, array in vars(tokens).items():
            assert getattr(found[branch], part).dtype == array.dtype
            np.testing.assert_allclose(getattr(found[branch], part), array, atol=1e-5, rtol=1e-4)


def test_the_encoder_without_torch_encodes_queries_as_the_method_does(
    exported: Graphs, encoders: tuple[Encoder, MethodEncoder]
) -> None:
    free, method = encoders
    texts = [
        TextFeatures(words=exported.words(length).numpy(), sentence=torch.randn(exported.method.sentence_width).numpy())
        for length in (1, 9, 30, 4)
    ]
    for batch in (texts, texts[:1], texts[2:3]):
        found, expected = free.encode_queries(batch), method.encode_queries(batch)
        assert list(found) == list(expected)
        for branch, vectors in expected.items():
            np.testing.assert_allclose(found[branch], vectors, atol=1e-5, rtol=1e-4)


def test_the_encoder_without_torch_rejects_other_features(encoders: tuple[Encoder, MethodEncoder]) -> None:
    free, _ = encoders
    with pytest.raises(BadBatch, match="width 3"):
        free.encode_videos(np.zeros((1, 4, 3), np.float32))
    with pytest.raises(BadBatch, match="width 3"):
        free.encode_queries([TextFeatures(words=np.zeros((2, 3), np.float32), sentence=np.zeros(3, np.float32))])
    nan = np.full((1, 4, getattr(free, "feature_widths", (free.width,))[0]), np.nan, np.float32)
    with pytest.raises(BadBatch, match="NaN"):
        free.encode_videos(nan)


@pytest.mark.parametrize("content", [None, "", "3", "{}", '{"similarities": 3}'])
def test_damaged_facts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FACTS).write_text(content)
    with pytest.raises(BadModel, match=r"encoders\.json"):
        OnnxEncoder(tmp_path)
    assert not fits(tmp_path)


PAGE = (ROOT / "docs/export.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@torch.no_grad()
def test_the_programs_of_the_page_compute_the_same(
    exported: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if exported.method.config.method == "tf_prvr":
        pytest.skip("the program of the page cannot prepare its videos")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").symlink_to(exported.folder)
    lengths = (128, 129, 200, 700, *((3, 12) if exported.facts["videos"]["frames"] == "capped" else ()))
    videos = {f"video {length}": exported.features(length) for length in lengths}
    words = {f"sentence {length}": exported.words(length) for length in (1, 4, 9)}
    sentences = {name: torch.randn(exported.method.sentence_width) for name in words}
    np.savez("frames.npz", **{name: each.numpy() for name, each in videos.items()})
    np.savez("words.npz", **{name: each.numpy() for name, each in words.items()})
    np.savez("sentences.npz", **{name: each.numpy() for name, each in sentences.items()})
    names: dict[str, Any] = {}
    for program in PROGRAMS:
        exec(program, names)
    batch = VideoBatch.join([exported.method.prepare_videos(each[None]) for each in videos.values()], len(videos))
    queries = join_texts([TextFeatures(words=words[name], sentence=sentences[name]) for name in words])
    expected = exported.method.score(exported.method.encode_queries(queries), exported.method.encode_videos(batch))
    close(names["scores"].astype(np.float32), expected)
    best = [list(videos)[row.argmax()] for row in expected]
    assert capsys.readouterr().out.splitlines() == [f"{text} -> {name}" for text, name in zip(words, best, strict=True)]


@torch.no_grad()
@pytest.mark.slow
def test_the_page_scores_every_similarity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A branch of keys has no query vectors. Some tokens are masked."""
    give_similarities(monkeypatch)
    method = ClipZeroShot(ClipZeroShot.Config(width=6, num_frames=8, num_clips=4))
    write_encoders(method, tmp_path)
    facts = json.loads((tmp_path / FACTS).read_text())
    assert facts["similarities"]["frame"] == {"kind": "attention", "guide": "clip", "keys": "key"}
    assert set(facts["similarities"]) == {"frame", "scene"}
    session = onnxruntime.InferenceSession(tmp_path / VIDEO_ENCODER)
    batch = method.prepare_videos(3 * torch.randn(5, 20, 6))
    feed = {port.name: vars(batch)[port.name].numpy() for port in session.get_inputs()}
    videos = dict(zip([port.name for port in session.get_outputs()], session.run(None, feed), strict=True))
    asked = method.encode_queries(
        QueryBatch(words=torch.zeros(3, 1, 6), mask=torch.ones(3, 1).bool(), sentence=torch.randn(3, 6))
    )
    for name in videos:
        if name.endswith("mask"):
            videos[name][0, 2:] = False
    tokens = {
        branch: Tokens(**{part: torch.from_numpy(videos[f"{branch}_{part}"]) for part in ("vectors", "mask", "spans")})
        for branch in method.branches
    }
    names: dict[str, Any] = {
        "np": np,
        "facts": facts,
        "unit": quantise.unit,
        "queries": {f"{branch}_vectors": vectors.numpy() for branch, vectors in asked.items()},
        "videos": videos,
        "words": range(3),
        "frames": range(5),
    }
    exec(PROGRAMS[3], names)
    expected = method.score(asked, tokens)
    close(names["scores"].astype(np.float32), expected)
    assert capsys.readouterr().out.splitlines() == [f"{n} -> {row.argmax()}" for n, row in enumerate(expected)]


@pytest.mark.parametrize("name", ["uniform", "order_preserving"])
def test_the_page_prepares_videos_as_the_method_does(name: str, unchecked: None) -> None:
    """Uniform clips and other lengths, without a graph."""
    method = METHODS["msc"](METHODS["msc"].Config(**WIDTHS, num_frames=20, num_clips=7, min_clips=2, clips=name))
    names: dict[str, Any] = {
        "np": np,
        "facts": {"videos": method.preparation() | {"inputs": ["frames", "clip_of_frame"]}},
    }
    exec(PROGRAMS[1], names)
    for length in (20, 21, 59, 300):
        frames = torch.randn(length, 10)
        found, expected = names["prepared"](frames.numpy()), method.prepare_videos(frames[None])
        assert found["clip_of_frame"].tolist() == expected.clip_of_frame[0].tolist()
        close(found["frames"], expected.frames[0])


@pytest.mark.slow
def test_a_graph_that_differs_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = ClipZeroShot(ClipZeroShot.Config(width=4, num_frames=4, num_clips=2))
    original: Callable[..., Any] = onnx._Graph._difference
    monkeypatch.setattr(onnx._Graph, "_difference", lambda self, parts: original(self, parts) + 2e-4)
    with pytest.raises(BadModel, match=r"video_encoder.onnx .*2.0e-04, expected at most 1e-04"):
        write_encoders(method, tmp_path)
    monkeypatch.setattr(onnx._Graph, "_difference", lambda self, parts: float("nan"))
    with pytest.raises(BadModel, match="nan"):
        write_encoders(method, tmp_path)


def test_results_of_other_shapes_or_types_differ_infinitely() -> None:
    ones = np.ones((2, 3), np.float32)
    assert onnx._max_difference(ones, ones + 0.5) == 0.5
    assert onnx._max_difference(ones, ones[:1]) == float("inf")
    assert onnx._max_difference(ones, ones.astype(np.float64)) == float("inf")
    assert onnx._max_difference(ones, ones * np.nan) == float("inf")
    assert onnx._max_difference(ones > 0, ones > 0) == 0
    assert onnx._max_difference(ones > 0, ones > 1) == float("inf")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(BadPackage, match=r"onnxruntime .*midreel\[train\]"):
        write_encoders(ClipZeroShot(ClipZeroShot.Config(width=4)), tmp_path)


@pytest.mark.slow
def test_the_method_keeps_its_training_mode(tmp_path: Path) -> None:
    method = ClipZeroShot(ClipZeroShot.Config(width=4, num_frames=4, num_clips=2)).train()
    assert write_encoders(method, tmp_path)[QUERY_ENCODER] == 0
    assert method.training
