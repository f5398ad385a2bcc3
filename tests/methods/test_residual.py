"""clip_residual and msc_residual: both start as zero-shot, and learn what to add."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.errors import BadBatch, BadSetting
from midreel.methods import load_method
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch
from midreel.methods.clip_residual import ClipResidual, ClipResidualConfig, scaled_infonce
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.methods.msc_residual import MSCResidual, MSCResidualConfig
from midreel.nn.residual import LowRank, Share, corrected
from midreel.types import Tokens

SIZES: dict[str, Any] = {"num_frames": 16, "num_clips": 4}
NETWORK: dict[str, Any] = {"width": 8, "num_heads": 2, "text_width": 6, "max_words": 9, "min_clips": 2}


def make(name: str, *, video_width: int = 10, joint_width: int = 6) -> Method:
    torch.manual_seed(0)
    widths = {"video_width": video_width, "joint_width": joint_width}
    if name == "clip_residual":
        return ClipResidual(ClipResidualConfig(**SIZES, **widths, rank=3)).eval()
    return MSCResidual(MSCResidualConfig(**SIZES, **widths, **NETWORK)).eval()


def trained(method: Method) -> Method:
    """Give random values to all weights, also to those that start at zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.ndim:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return method


def queries(num: int, width: int = 6) -> QueryBatch:
    torch.manual_seed(2)
    return QueryBatch(
        words=torch.randn(num, 5, 6), mask=torch.ones(num, 5, dtype=torch.bool), sentence=torch.randn(num, width)
    )


both = pytest.mark.parametrize("name", ["clip_residual", "msc_residual"])


# ---------------------------------------------------------------- the residual


def test_a_vector_with_a_residual_by_hand() -> None:
    # unit((3, 4)) = (0.6, 0.8); plus (0.4, -0.8) = (1, 0)
    found = corrected(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.4, -0.8]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0]]), atol=1e-4, rtol=0)


def test_the_low_rank_map_equals_the_loop() -> None:
    torch.manual_seed(0)
    layer = LowRank(input_width=3, width=2, rank=1)
    with torch.no_grad():
        layer.up.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        layer.up.bias.copy_(torch.tensor([0.5, 0.25]))
    x = torch.tensor([1.0, 2.0, 2.0])  # length 3
    weights = layer.down.weight.detach()
    inner = sum(float(weights[0, i] * x[i] / (3 + 1e-5)) for i in range(3))
    expected = torch.tensor([2.0 * inner + 0.5, -inner + 0.25])
    torch.testing.assert_close(layer(x), expected)


def test_scaled_infonce_by_hand() -> None:
    # Cosines (1, 0) and (0, 1), scale 2: log(e^2 + 1) - 2 in each direction.
    eye = torch.eye(2)
    tokens = Tokens(
        vectors=eye[:, None], mask=torch.ones(2, 1, dtype=torch.bool), spans=torch.tensor([[[0.0, 1.0]]] * 2)
    )
    found = scaled_infonce({"frame": eye}, {"frame": tokens}, torch.tensor([0, 1]), torch.tensor(math.log(2.0)))
    expected = 2 * (math.log(math.exp(2) + 1) - 2)
    assert found["frame_nce"].item() == pytest.approx(expected, abs=1e-5)


def test_a_share_of_the_residual_is_added_after_training_only() -> None:
    share, residual = Share(), torch.tensor([[2.0, -4.0]])
    share.value.fill_(0.25)
    torch.testing.assert_close(share.train()(residual), residual)
    torch.testing.assert_close(share.eval()(residual), torch.tensor([[0.5, -1.0]]))


# ---------------------------------------------------------------- before and after training


@both
def test_before_training_every_score_is_that_of_zero_shot(name: str) -> None:
    method, features = make(name), torch.randn(3, 40, 10)
    zero_shot = ClipZeroShot(ClipZeroShotConfig(**SIZES, width=6, clips="order_preserving", clip_weight=0.4))
    # Clips are cut by all channels of the features, so both get the same clips.
    videos = method.prepare_videos(features)
    expected = zero_shot.score(zero_shot.encode_queries(queries(4)), zero_shot.encode_videos(videos))
    found = method.score(method.encode_queries(queries(4)), method.encode_videos(videos))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@both
def test_after_training_scores_differ_from_zero_shot(name: str) -> None:
    method, features = make(name), torch.randn(3, 40, 10)
    before = method.score(method.encode_queries(queries(4)), method.encode_videos(method.prepare_videos(features)))
    trained(method)
    after = method.score(method.encode_queries(queries(4)), method.encode_videos(method.prepare_videos(features)))
    assert (before - after).abs().max() > 0.05


def scores_of(method: Method) -> torch.Tensor:
    torch.manual_seed(3)
    videos = method.prepare_videos(torch.randn(3, 40, 10))
    with torch.no_grad():
        return method.score(method.encode_queries(queries(4)), method.encode_videos(videos))


@both
def test_without_a_share_a_trained_model_is_zero_shot(name: str) -> None:
    before, method = scores_of(make(name)), trained(make(name))
    method.share.value.fill_(0.0)
    torch.testing.assert_close(scores_of(method), before, atol=1e-5, rtol=0)


@both
def test_half_a_share_is_half_the_residual(name: str) -> None:
    """Halving the last layers of the residual is the slow way to the same scores."""
    method, twin = trained(make(name)), trained(make(name))
    method.share.value.fill_(0.5)
    last = ("video.up", "query.up") if name == "clip_residual" else ("of_clip", "of_frame", "of_query")
    with torch.no_grad():
        for each in last:
            for weight in twin.get_submodule(each).parameters():
                weight.mul_(0.5)
    torch.testing.assert_close(scores_of(method), scores_of(twin), atol=1e-5, rtol=0)


@both
def test_the_share_is_saved_with_the_weights(name: str, tmp_path: Path) -> None:
    method = trained(make(name))
    method.share.value.fill_(0.75)
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert found.get_buffer("share.value").item() == 0.75
    torch.testing.assert_close(scores_of(found.eval()), scores_of(method))


@both
def test_tokens_and_queries_are_unit_vectors_of_the_joint_space(name: str) -> None:
    method = trained(make(name))
    tokens = method.encode_videos(method.prepare_videos(torch.randn(2, 40, 10)))
    vectors = [*(part.vectors[part.mask] for part in tokens.values()), *method.encode_queries(queries(3)).values()]
    for each in vectors:
        assert each.shape[-1] == method.token_width == method.sentence_width == 6
        torch.testing.assert_close(each.norm(dim=-1), torch.ones(len(each)), atol=1e-4, rtol=0)


@both
def test_a_video_does_not_depend_on_its_batch_or_its_padding(name: str) -> None:
    method, features = trained(make(name)), torch.randn(3, 40, 10)
    alone = method.encode_videos(method.prepare_videos(features[1:2, :25]))
    padded = features.clone()
    padded[1, 25:] = torch.nan
    together = method.encode_videos(method.prepare_videos(padded, torch.tensor([40, 25, 40])))
    for branch, part in alone.items():
        torch.testing.assert_close(together[branch].vectors[1:2], part.vectors, atol=1e-5, rtol=0)


@both
def test_videos_of_one_frame(name: str) -> None:
    method = trained(make(name))
    tokens = method.encode_videos(method.prepare_videos(torch.randn(2, 1, 10)))
    scores = method.score(method.encode_queries(queries(3)), tokens)
    assert scores.isfinite().all()
    assert tokens["frame"].vectors.isfinite().all()


@both
def test_gradients_reach_every_weight_after_the_first_step(name: str) -> None:
    method = trained(make(name)).train()
    batch = Batch(
        videos=method.prepare_videos(torch.randn(3, 40, 10)),
        queries=queries(4),
        video_of_query=torch.tensor([0, 1, 2, 2]),
    )
    terms = method.losses(batch)
    assert {"clip_nce", "frame_nce"} <= set(terms)
    torch.stack(list(terms.values())).sum().backward()
    without = [each for each, weight in method.named_parameters() if weight.grad is None]
    assert [each for each in without if not each.endswith("summary.key.bias")] == []  # a softmax ignores this bias


def test_the_first_gradient_opens_the_residual() -> None:
    """The weights that start at zero have a gradient at once. Those below them have one after the first step."""
    method = make("clip_residual").train()
    batch = Batch(
        videos=method.prepare_videos(torch.randn(3, 40, 10)), queries=queries(3), video_of_query=torch.arange(3)
    )
    torch.stack(list(method.losses(batch).values())).sum().backward()
    weights = dict(method.named_parameters())
    for each in ("video.up.weight", "query.up.weight", "log_scale"):
        gradient = weights[each].grad
        assert gradient is not None
        assert gradient.abs().max() > 0
    down = weights["video.down.weight"].grad
    assert down is not None
    assert down.abs().max() == 0


def test_gradients_of_the_loss_are_right() -> None:
    method = trained(make("clip_residual")).double()
    batch = Batch(
        videos=method.prepare_videos(torch.randn(3, 20, 10, dtype=torch.float64)),
        queries=QueryBatch(
            words=torch.randn(3, 2, 6), mask=torch.ones(3, 2).bool(), sentence=torch.randn(3, 6, dtype=torch.float64)
        ),
        video_of_query=torch.arange(3),
    )
    weight = dict(method.named_parameters())["video.up.weight"]

    def loss(value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(_Losses(method), {"method.video.up.weight": value}, (batch,))
        return found

    assert torch.autograd.gradcheck(loss, weight.detach().clone().requires_grad_(), atol=1e-6)


class _Losses(torch.nn.Module):
    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch) -> torch.Tensor:
        return torch.stack(list(self.method.losses(batch).values())).sum()


@pytest.mark.parametrize(("name", "number"), [("clip_residual", 10 * 3 + 6 * 3 + 2 * (3 * 6 + 6) + 1)])
def test_number_of_weights(name: str, number: int) -> None:
    assert sum(weight.numel() for weight in make(name).parameters()) == number


def test_msc_residual_has_the_weights_of_msc_and_three_maps() -> None:
    from midreel.methods.msc import MSC, MSCConfig

    own = sum(weight.numel() for weight in make("msc_residual").parameters())
    msc = sum(weight.numel() for weight in MSC(MSCConfig(**SIZES, **NETWORK, video_width=10)).parameters())
    assert own == msc + 3 * (8 * 6 + 6) + 1


# ---------------------------------------------------------------- bad input


@both
def test_queries_without_sentences_are_refused(name: str) -> None:
    some = queries(2)
    with pytest.raises(BadBatch, match="sentence"):
        make(name).encode_queries(QueryBatch(words=some.words, mask=some.mask))
    with pytest.raises(BadBatch, match="width 5"):
        make(name).encode_queries(queries(2, width=5))


@both
def test_frames_of_another_width_are_refused(name: str) -> None:
    method = make(name)
    with pytest.raises(BadBatch, match="width 11"):
        method.encode_videos(method.prepare_videos(torch.randn(1, 20, 11)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"joint_width": 11},
        {"joint_width": 0},
        {"scale": 0.5},
        {"scale": 101.0},
        {"frame_weight": 1.5},
        {"rank": 0},
        {"num_frames": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        ClipResidualConfig(**{"video_width": 10, "joint_width": 6} | wrong)
