"""What midreel promises for every method, its own and later ones: resume, evaluation, collapse, bad input."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from midreel.datasets.dataset import Dataset
from midreel.errors import BadBatch, BadModel, MissingFeatures
from midreel.evaluation import collapse
from midreel.evaluation.evaluate import evaluate
from midreel.experiments import runs
from midreel.features.stores.store import FeatureStore
from midreel.methods import METHODS, load_method
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import read_lines
from tests.methods.small import TRAINED, perturbed, small_config, train
from tests.training.worlds import WIDTH, Stop, StopAt, World

VARIANTS: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in TRAINED), ("dl_dkd", {"objective": "iccv"})]


def make(name: str) -> Method:
    torch.manual_seed(1)
    return perturbed(METHODS[name](small_config(name)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_resumed_run_has_the_same_bits(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe(config=small_config(name, **settings), lr=1e-2, batch_size=5, epochs=3, patience=9)
    train(tmp_path / "whole", recipe)
    with pytest.raises(Stop):
        train(tmp_path / "parts", recipe, monitor=StopAt(2, 1))
    train(tmp_path / "parts", recipe, resume=True)
    whole, parts = (list(read_lines(tmp_path / run / "metrics.jsonl")) for run in ("whole", "parts"))
    assert whole == parts
    assert len(whole) == 3
    for part in ("best", "last"):
        expected, found = (load_method(tmp_path / run / part) for run in ("whole", "parts"))
        assert expected.config == found.config == recipe.config
        assert all(weight.equal(found.state_dict()[key]) for key, weight in expected.state_dict().items())
    first = METHODS[name](recipe.config).state_dict()
    assert any(not weight.equal(first[key]) for key, weight in found.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_evaluation_and_collapse(name: str) -> None:
    method, world = make(name), World(10)
    data = FeatureSet.prepare(method, world.split, world)
    report = evaluate(
        method,
        data.video_batches(4),
        data.query_batches(7),
        data.video_of_query,
        moments=[query.moments for query in data.queries],
        durations=data.durations,
    )
    assert set(report.branches) == {branch for branch, each in method.branches.items() if each.role != "keys"}
    assert report.num_moments == len(data.queries)
    assert 0 < report.moments["found"]["mIoU"] <= 100
    found = collapse.measure(method, data.video_batches(4), data.query_batches(7), data.video_of_query).figures()
    assert {"text Diff. Norm", "video Diff. Norm", "Spearman"} <= set(found)
    # TF-PRVR has one token for a video of fewer than 16 frames, so there are no pairs of tokens to compare.
    whole = {figure for figure in found if figure.startswith("video ")} if name == "tf_prvr" else set()
    assert all(math.isfinite(value) for figure, value in found.items() if figure not in whole)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_short_videos(name: str, length: int) -> None:
    """A video of a few frames is encoded, scored and trained on. Its tokens stand for parts of the video."""
    method = make(name)
    videos = method.prepare_videos(torch.randn(3, length, WIDTH))
    queries = QueryBatch(
        words=torch.randn(4, 3, WIDTH), mask=torch.ones(4, 3, dtype=torch.bool), sentence=torch.randn(4, WIDTH)
    )
    with torch.no_grad():
        tokens = method.encode_videos(videos)
        assert method.score(method.encode_queries(queries), tokens).isfinite().all()
    for part in tokens.values():
        assert part.mask.any(1).all()
        spans = part.spans[part.mask]
        assert ((spans >= 0) & (spans <= 1 + 1e-6)).all()
        assert (spans[:, 0] <= spans[:, 1]).all()
    if name in TRAINED:
        batch = Batch(videos=videos, queries=queries, video_of_query=torch.tensor([0, 0, 1, 2]))
        with torch.no_grad():
            method.start_epoch(30, iter([batch]))
        loss = torch.stack(list(method.train().losses(batch, epoch=30).values())).sum()
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def some_batch(method: Method) -> Batch:
    """Four videos of different lengths with seven queries."""
    generator = torch.Generator().manual_seed(5)
    words, sentence = (torch.randn(*shape, generator=generator) for shape in ((7, 5, WIDTH), (7, WIDTH)))
    frames, lengths = torch.randn(4, 20, WIDTH, generator=generator), torch.tensor([20, 12, 7, 16])
    return Batch(
        videos=method.prepare_videos(frames, lengths),
        queries=QueryBatch(
            words=words, mask=torch.arange(5) < torch.tensor([2, 3, 4, 5, 5, 2, 3])[:, None], sentence=sentence
        ),
        video_of_query=torch.tensor([0, 0, 1, 2, 2, 3, 3]),
    )


# Losses whose targets have no gradient, or whose directions each have a gradient for one side, differ from a
# difference quotient on purpose. The tests of the methods compare their gradients with a twin.
WHOLE = {"proto_prvr": {"word_weight": 0.0, "frame_weight": 0.0}}


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_the_gradient_of_all_weights(name: str, settings: dict[str, Any]) -> None:
    """Along a random direction of all weights, the gradient of the loss equals its difference quotient."""
    torch.manual_seed(2)
    without = {"dropout": 0.0, "input_dropout": 0.0}
    known = METHODS[name].Config.__dataclass_fields__
    dropout = {setting: value for setting, value in without.items() if setting in known}
    method = METHODS[name](small_config(name, **dropout, **settings, **WHOLE.get(name, {}))).double().train()
    data, weights = some_batch(method), dict(method.named_parameters())
    with torch.no_grad():
        method.start_epoch(30, iter([data]))
        for weight in weights.values():
            weight.add_(0.1 * torch.randn_like(weight))
    direction = {key: torch.randn_like(weight) for key, weight in weights.items()}

    def loss(step: float) -> torch.Tensor:
        torch.manual_seed(0)  # draws the negatives
        with torch.no_grad():
            for key, weight in weights.items():
                weight.add_(step * direction[key])
        return torch.stack(list(method.losses(data, epoch=30).values())).sum()

    gradients = torch.autograd.grad(loss(0.0), list(weights.values()), allow_unused=True)
    along = sum(
        (gradient * direction[key]).sum()
        for key, gradient in zip(weights, gradients, strict=True)
        if gradient is not None
    )
    above, below = loss(1e-6).item(), loss(-2e-6).item()
    assert (above - below) / 2e-6 == pytest.approx(float(along), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_videos_and_queries_does_not_matter(name: str) -> None:
    method = make(name)
    data = some_batch(method)
    videos, queries = torch.tensor([2, 0, 3, 1]), torch.tensor([6, 2, 0, 5, 1, 4, 3])
    moved = QueryBatch(
        words=data.queries.words[queries], mask=data.queries.mask[queries], sentence=data.queries.sentence[queries]
    )
    with torch.no_grad():
        expected = method.score(method.encode_queries(data.queries), method.encode_videos(data.videos))
        found = method.score(method.encode_queries(moved), method.encode_videos(data.videos[videos]))
    torch.testing.assert_close(found, expected[queries][:, videos], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_features_of_another_width(name: str, unchecked: None) -> None:
    method = make(name)
    with pytest.raises(BadBatch, match=f"width {WIDTH - 1}"):
        method.encode_videos(method.prepare_videos(torch.randn(2, 20, WIDTH - 1)))
    narrow = QueryBatch(
        words=torch.randn(2, 3, WIDTH - 1),
        mask=torch.ones(2, 3, dtype=torch.bool),
        sentence=torch.randn(2, WIDTH - 1),
    )
    with pytest.raises(BadBatch, match=f"width {WIDTH - 1}"):
        method.encode_queries(narrow)


@pytest.mark.parametrize("name", METHODS)
def test_queries_without_words(name: str, unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"\[1\]"):
        make(name).encode_queries(
            QueryBatch(
                words=torch.randn(2, 3, WIDTH),
                mask=torch.tensor([[True, True, False], [False, False, False]]),
                sentence=torch.randn(2, WIDTH),
            )
        )


@pytest.mark.parametrize("name", METHODS)
def test_weights_of_another_method(name: str, tmp_path: Path) -> None:
    make(name).save_pretrained(tmp_path)
    other = next(each for each in TRAINED if each != name)
    save_file(make(other).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(BadModel, match=r"config\.json"):
        load_method(tmp_path)


@pytest.mark.parametrize("name", TRAINED)
def test_training_without_features_of_sentences(name: str, dataset_folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    silent = replace(dataset.store.fingerprint, word_width=None, sentence_width=None)
    recipe = runs.recipe_for(dataset, name, "playhouse")
    with (
        FeatureStore.create(tmp_path / "silent.h5", silent) as store,
        pytest.raises(MissingFeatures, match=r"silent\.h5 .*midreel join"),
    ):
        runs.train(replace(dataset, store=store), recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
