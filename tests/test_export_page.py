"""docs/export.md shows what is really printed, and its programs compute what midreel does."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.experiments.model_export import export_model
from midreel.methods import load_method
from midreel.methods.base import Method
from midreel.training.data import join_texts
from midreel.types import TextFeatures, VideoBatch
from tests.conftest import Command
from tests.test_onnx_export import CONFIGS, new_method

PAGE = (Path(__file__).parent.parent / "docs/export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_command(midreel: Command, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(run_folder)
    (shown,) = blocks("console")
    command, expected = shown.split("\n", 1)
    ended = midreel(*command.removeprefix("$ midreel ").split())
    number = re.compile(r"\d\.\de-\d\d")
    assert (ended.code, number.sub("#", ended.out)) == (0, number.sub("#", expected))
    for name in (path.name for path in (tmp_path / "exported").iterdir()):
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "clip_zero_shot"])  # which takes no words
def test_the_programs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    new_method(name).save_pretrained(tmp_path / "model")
    export_model(tmp_path / "model", tmp_path / "exported", onnx=True)
    method = load_method(tmp_path / "exported")
    videos = {f"video {n}": torch.randn(n, 10) for n in (128, 129, 200, 700)} | (
        {"short": torch.randn(3, 10)} if name in ("gmmformer_v2", "msc, uniform") else {}
    )
    words = {f"sentence {n}": torch.randn(n, 6) for n in (1, 4, 9)}
    np.savez("frames.npz", **{key: value.numpy() for key, value in videos.items()})
    np.savez("words.npz", **{key: value.numpy() for key, value in words.items()})
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    expected = scores(method, videos, words)
    torch.testing.assert_close(torch.from_numpy(names["scores"]), expected, atol=1e-5, rtol=1e-5)
    best = [list(videos)[row.argmax()] for row in expected]
    assert capsys.readouterr().out.splitlines() == [
        f"{text} -> {video}" for text, video in zip(words, best, strict=True)
    ]


@torch.no_grad()
def scores(method: Method, videos: dict[str, torch.Tensor], words: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = VideoBatch.join([method.prepare_videos(each[None]) for each in videos.values()])
    queries = join_texts([TextFeatures(words=each, sentence=torch.zeros(1)) for each in words.values()])
    return method.score(method.encode_queries(queries), method.encode_videos(batch))
