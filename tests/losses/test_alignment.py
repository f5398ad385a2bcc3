import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch
from midreel.losses.alignment import cross_branch_alignment, released_alignment
from tests import twins

LOSSES = [cross_branch_alignment, released_alignment]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Two videos; the second leaves two of its four clips unused, one of them in the middle."""
    frames = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    clips = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    return frames, clips, torch.tensor([[0, 0, 1, 2, 2, 3], [0, 0, 2, 2, 0, 2]])


def test_by_hand() -> None:
    # Two frames in clip 0 and one in clip 1; the cosines are 1 where they belong and 0 elsewhere.
    frames = torch.tensor([[[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]])
    clips = torch.tensor([[[5.0, 0.0], [0.0, 1.0]]])
    e = math.e
    to_clip = math.log(e + 1) - 1
    to_frame = (math.log(2 * e + 1) - math.log(2 * e) + math.log(e + 2) - 1) / 2
    assert cross_branch_alignment(frames, clips, torch.tensor([[0, 0, 1]])).item() == pytest.approx(to_clip + to_frame)


def test_the_released_form_by_hand() -> None:
    # Dot products 2, 1 and 3 with the own clip, 0 with the other.
    frames = torch.tensor([[[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]])
    clips = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    e = math.e
    to_clip = sum(math.log(1 + 1 / e**s) for s in (2, 1, 3)) / 3
    to_frame = (math.log(1 + 1 / ((e**2 + e) / 2)) + math.log(1 + 1 / e**3)) / 2
    assert released_alignment(frames, clips, torch.tensor([[0, 0, 1]])).item() == pytest.approx(to_clip + to_frame)


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_loop_in_value_and_gradient(loss: Loss) -> None:
    frames, clips, clip_of_frame = example()
    fast, slow = loss(frames, clips, clip_of_frame), getattr(twins, loss.__name__)(frames, clips, clip_of_frame)
    torch.testing.assert_close(fast, slow)
    fast_gradients, slow_gradients = (torch.autograd.grad(value, (frames, clips)) for value in (fast, slow))
    torch.testing.assert_close(fast_gradients, slow_gradients)


def test_gradcheck() -> None:
    frames, clips, clip_of_frame = example()
    assert torch.autograd.gradcheck(lambda f, c: cross_branch_alignment(f, c, clip_of_frame), (frames, clips))


@pytest.mark.parametrize("loss", LOSSES)
def test_unused_clips_do_not_matter(loss: Loss) -> None:
    frames, clips, clip_of_frame = example()
    value = loss(frames, clips, clip_of_frame)
    gradient = torch.autograd.grad(value, clips)[0]
    assert (gradient[1, [1, 3]] == 0).all()
    changed = clips.detach().clone()
    changed[1, 1], changed[1, 3] = 1e3, 0
    torch.testing.assert_close(loss(frames, changed, clip_of_frame), value)


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=st.integers(0, 2**31), total=st.integers(1, 12), num_clips=st.integers(1, 5))
def test_clips_may_be_renumbered_and_videos_batched(loss: Loss, seed: int, total: int, num_clips: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(2, total, 4, generator=generator, dtype=torch.float64)
    clips = torch.randn(2, num_clips, 4, generator=generator, dtype=torch.float64)
    clip_of_frame = torch.randint(num_clips, (2, total), generator=generator)
    value = loss(frames, clips, clip_of_frame)
    assert value >= 0
    new_name = torch.randperm(num_clips, generator=generator)
    torch.testing.assert_close(loss(frames, clips[:, new_name.argsort()], new_name[clip_of_frame]), value)
    alone = [loss(frames[i, None], clips[i, None], clip_of_frame[i, None]) for i in range(2)]
    torch.testing.assert_close(torch.stack(alone).mean(), value)


def test_scale_is_free_in_the_papers_form() -> None:
    frames, clips, clip_of_frame = example()
    value = cross_branch_alignment(frames, clips, clip_of_frame)
    torch.testing.assert_close(cross_branch_alignment(5 * frames, clips / 9, clip_of_frame), value)


def test_the_released_form_vanishes_at_the_ideal() -> None:
    frames, clips = 40 * torch.eye(3)[None, [0, 0, 1, 2]], torch.eye(3)[None]
    assert released_alignment(frames, clips, torch.tensor([[0, 0, 1, 2]])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_frame_and_one_clip(loss: Loss) -> None:
    frames, clips = torch.randn(1, 1, 3, requires_grad=True), torch.randn(1, 1, 3, requires_grad=True)
    value = loss(frames, clips, torch.zeros(1, 1, dtype=torch.long))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert frames.grad is not None
    assert frames.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_equal_frames_have_finite_gradients(loss: Loss) -> None:
    frames, clips = torch.ones(2, 8, 3, requires_grad=True), torch.ones(2, 4, 3, requires_grad=True)
    loss(frames, clips, torch.arange(8).expand(2, 8) // 2).backward()
    assert frames.grad is not None
    assert clips.grad is not None
    assert frames.grad.isfinite().all()
    assert clips.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_bad_shapes_are_named(loss: Loss, unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"clips has shape \(1, 2, 5\).*D = 3"):
        loss(torch.randn(1, 4, 3), torch.randn(1, 2, 5), torch.zeros(1, 4, dtype=torch.long))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("stray", [-1, 2])
def test_a_frame_without_a_clip_is_named(loss: Loss, stray: int) -> None:
    with pytest.raises(BadBatch, match=r"clip_of_frame .*expected 0 to 1"):
        loss(torch.randn(1, 3, 3), torch.randn(1, 2, 3), torch.tensor([[0, 1, stray]]))
