"""Token merging: hand-computed cases, slow twins and properties of a segmentation."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.ops import segments
from midreel.ops.neighbours import neighbour_products
from tests import twins
from tests.methods.twin_key_clip import interpolated

RELEASED_FRAMES = (128, 80, 52, 32)


def vectors(*degrees: float) -> Tensor:
    """Unit vectors of the plane at these angles, as one video."""
    radians = torch.tensor(degrees) * math.pi / 180
    return torch.stack((radians.cos(), radians.sin()), -1)[None]


def assert_segmentation(segment_of_frame: Tensor, num_segments: int) -> None:
    """A partition, numbered by first appearance, with sizes that sum to T."""
    for row in segment_of_frame.tolist():
        assert twins.numbered(row) == row
    assert_partition(segment_of_frame, num_segments)


def assert_partition(segment_of_frame: Tensor, num_segments: int) -> None:
    """Every number from 0 to `num_segments` - 1 is used."""
    for row in segment_of_frame.tolist():
        assert set(row) == set(range(num_segments))
    sizes = segments.segment_sizes(segment_of_frame, num_segments)
    assert (sizes > 0).all()
    assert (sizes.sum(1) == segment_of_frame.shape[1]).all()


def assert_ordered(segment_of_frame: Tensor) -> None:
    step = segment_of_frame.diff(dim=1)
    assert ((step == 0) | (step == 1)).all()


class TestResample:
    def test_by_hand(self) -> None:
        frames = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7])[None, :, None]
        # Windows [0, 2), [2, 4), [4, 6), [6, 7): the last bound is clamped to 7, so frame 7 is not used.
        assert segments.resample(frames, 4).flatten().tolist() == [0.5, 2.5, 4.5, 6.0]

    def test_a_short_video_repeats_its_frames(self) -> None:
        frames = torch.tensor([[1.0], [2.0]])[None]
        assert segments.resample(frames, 4).flatten().tolist() == [1, 1, 2, 2]

    def test_one_frame(self) -> None:
        assert segments.resample(torch.full((2, 1, 3), 7.0), 128).eq(7).all()

    @given(st.integers(1, 300), st.sampled_from([1, 4, 32, 128]))
    def test_equals_the_loop(self, total: int, length: int) -> None:
        frames = torch.randn(2, total, 3)
        expected = torch.stack([twins.resample(video, length) for video in frames])
        torch.testing.assert_close(segments.resample(frames, length), expected)

    def test_padding_is_not_seen(self) -> None:
        lengths = torch.tensor([3, 40, 130, 200])
        frames = torch.randn(4, 200, 5)
        padded = frames.masked_fill(torch.arange(200)[:, None] >= lengths[:, None, None], math.nan)
        expected = torch.stack([twins.resample(v[:n], 128) for v, n in zip(frames, lengths.tolist(), strict=True)])
        torch.testing.assert_close(segments.resample(padded, 128, lengths), expected)

    def test_the_grid_does_not_matter_for_the_released_sizes(self) -> None:
        """The released codes use single or double precision. For 32 and 128 windows both agree."""
        for total in range(1, 1500):
            for length in (32, 128):
                single, double = (
                    (torch.arange(length + 1, dtype=dtype) / length * total).round()
                    for dtype in (torch.float32, torch.float64)
                )
                assert single.double().equal(double)
        frames = torch.arange(45.0)[None, :, None]
        # Bound 7 of 10 windows is 0.7 · 45 = 31.5, half-way between two frames, and 0.7 itself is rounded.
        assert not segments.resample(frames, 10).equal(segments.resample(frames, 10, grid=torch.float64))

    def test_an_empty_video_is_named(self) -> None:
        with pytest.raises(BadSetting, match=r"num_frames is \[2, 0\]"):
            segments.resample(torch.randn(2, 4, 1), 8, torch.tensor([2, 0]))

    def test_bad_numbers_of_frames(self, unchecked: None) -> None:
        frames = torch.randn(2, 4, 1)
        with pytest.raises(BadBatch, match=r"num_frames has shape \(3,\).*B = 2"):
            segments.resample(frames, 8, torch.tensor([2, 2, 2]))
        with pytest.raises(BadBatch, match=r"num_frames is a list"):
            segments.resample(frames, 8, [2, 2])  # type: ignore[arg-type]
        with pytest.raises(BadBatch, match=r"num_frames .*torch.float32"):
            segments.resample(frames, 8, torch.tensor([2.0, 2.0]))
        assert segments.resample(frames[:0], 8, torch.tensor([], dtype=torch.long)).shape == (0, 8, 1)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_nan_and_infinite_frames_are_named(self, value: float) -> None:
        frames = torch.randn(3, 150, 2)
        frames[1, 149] = value
        with pytest.raises(BadBatch, match=r"videos \[1\]"):
            segments.resample(frames)

    def test_a_long_window_in_half_precision(self) -> None:
        frames = torch.full((1, 128 * 700, 1), 100.0).half()
        assert segments.resample(frames).eq(100).all()


class TestInterpolate:
    def test_by_hand(self) -> None:
        # Frames at 1 and 3 on an axis to 4. Window 0 touches the first frame, window 1 is from 1.0001 to 2, and so on.
        found = segments.interpolate(torch.tensor([[[0.0], [4.0]]], dtype=torch.float64), 4).flatten()
        expected = [
            (0.0002 + 0.0001 + 0) / 3,
            (0.0002 + 1.0001 + 2) / 3,
            (2 + 2.9999 + 3.9998) / 3,
            (4 + 3.9999 + 3.9998) / 3,
        ]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))

    def test_the_borders_of_a_short_video_are_zeros(self) -> None:
        found = segments.interpolate(torch.ones(1, 2, 3), 32)[0]
        assert (found == 0).all(1).nonzero().flatten().tolist() == [*range(7), *range(25, 32)]
        torch.testing.assert_close(found[7:25], torch.ones(18, 3))

    def test_one_frame_fills_all_windows(self) -> None:
        frames = torch.randn(2, 1, 3)
        assert segments.interpolate(frames, 48).equal(frames.expand(-1, 48, -1))

    @pytest.mark.parametrize("length", [1, 7, 32, 48])
    @pytest.mark.parametrize("total", [2, 3, 5, 24, 31, 32, 48, 49, 96, 150, 333])
    def test_equals_scipy(self, total: int, length: int) -> None:
        frames = torch.randn(2, total, 3, dtype=torch.float64)
        expected = torch.stack([interpolated(video, length) for video in frames])
        torch.testing.assert_close(segments.interpolate(frames, length), expected, atol=1e-12, rtol=0)
        single = segments.interpolate(frames.float(), length)
        torch.testing.assert_close(single, expected.float(), atol=1e-6, rtol=0)

    def test_padding_is_not_seen(self) -> None:
        lengths = torch.tensor([1, 2, 40, 57])
        frames = torch.randn(4, 57, 3)
        padded = frames.masked_fill(torch.arange(57)[:, None] >= lengths[:, None, None], math.nan)
        found = segments.interpolate(padded, 48, lengths)
        for row, video, num in zip(found, frames, lengths.tolist(), strict=True):
            assert row.equal(segments.interpolate(video[None, :num], 48)[0])

    @given(st.integers(2, 80), st.integers(1, 50))
    def test_a_straight_line_stays_straight(self, total: int, length: int) -> None:
        """Inside the video, a line of slope one per frame has the value of the middle of each window."""
        frames = torch.arange(total, dtype=torch.float64)[None, :, None]
        found = segments.interpolate(frames, length).flatten()
        middle = (torch.arange(length) + 0.5) * total / length - 0.5
        inside = (torch.arange(length) * total / length >= 1) & (
            (torch.arange(length) + 1) * total / length <= total - 1
        )
        torch.testing.assert_close(found[inside], middle.double()[inside], atol=1e-4, rtol=0)

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match=r"videos \[1\]"):
            segments.interpolate(torch.tensor([[[1.0], [2]], [[1], [math.inf]]]), 4)
        with pytest.raises(BadSetting, match="length is 0"):
            segments.interpolate(torch.zeros(1, 2, 1), 0)
        with pytest.raises(BadSetting, match=r"num_frames is \[3\]"):
            segments.interpolate(torch.zeros(1, 2, 1), 4, torch.tensor([3]))
        with pytest.raises(BadSetting, match="number of frames is 0"):
            segments.interpolate(torch.zeros(1, 0, 1), 4)


class TestCap:
    def test_by_hand(self) -> None:
        frames = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 0, 0, 0, 0, 0]])[..., None]
        found, mask = segments.cap(frames, 4, torch.tensor([8, 3]))
        assert found[..., 0].tolist() == [[1.5, 3.5, 5.5, 7], [1, 2, 3, 0]]
        assert mask.tolist() == [[True] * 4, [True, True, True, False]]

    @given(st.integers(1, 60), st.sampled_from([1, 7, 16, 32]), st.data())
    def test_equals_the_loop_with_any_padding(self, total: int, length: int, data: st.DataObject) -> None:
        lengths = torch.tensor(data.draw(st.lists(st.integers(1, total), min_size=2, max_size=2)))
        frames = torch.randn(2, total, 3, dtype=torch.float64)
        padded = frames.masked_fill(torch.arange(total)[:, None] >= lengths[:, None, None], math.nan)
        found, mask = segments.cap(padded, length, lengths)
        for row, real, video, num in zip(found, mask, frames, lengths.tolist(), strict=True):
            expected = torch.stack(twins.cap(video[:num], length))
            torch.testing.assert_close(row[real], expected)
            assert (row[~real] == 0).all()
        if bool((lengths == total).all()):
            torch.testing.assert_close(segments.cap(frames, length)[0], found)


class TestDerived:
    def test_by_hand(self) -> None:
        segment_of_frame = torch.tensor([[0, 0, 1, 2]])
        frames = torch.tensor([[[1.0], [3.0], [5.0], [7.0]]])
        assert segments.segment_sizes(segment_of_frame, 4).tolist() == [[2, 1, 1, 0]]
        assert segments.segment_mean(frames, segment_of_frame, 4).flatten().tolist() == [2, 5, 7, 0]
        spans = segments.segment_spans(segment_of_frame, 4)
        assert spans.tolist() == [[[0, 0.5], [0.5, 0.75], [0.75, 1], [0, 0]]]

    def test_weighted_mean(self) -> None:
        tokens, sizes = torch.tensor([[[1.0], [4.0]]]), torch.tensor([[1, 2]])
        together = torch.zeros(1, 2, dtype=torch.long)
        assert segments.segment_mean(tokens, together, 1, sizes).item() == 3
        assert segments.segment_mean(tokens, together, 1, sizes / 8).item() == 3

    def test_merging_twice_is_merging_the_composition(self) -> None:
        frames = torch.randn(3, 20, 4, dtype=torch.float64)
        first = segments.order_preserving(frames, 8)
        sizes = segments.segment_sizes(first, 8)
        means = segments.segment_mean(frames, first, 8)
        second = segments.bipartite(means, sizes, 5)
        torch.testing.assert_close(
            segments.segment_mean(means, second, 5, sizes),
            segments.segment_mean(frames, segments.compose(first, second), 5),
        )

    def test_gradient_of_the_mean(self) -> None:
        segment_of_frame = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]])
        frames = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: segments.segment_mean(x, segment_of_frame, 3), frames)


class TestLevels:
    def test_the_papers_lists(self) -> None:
        assert segments.levels(32) == [32, 20, 12, 8, 6, 5]
        assert segments.levels(128, minimum=32) == [128, 80, 50, 32]

    @given(st.integers(1, 300), st.floats(0.01, 1), st.integers(1, 40))
    def test_equals_the_loop_and_falls(self, length: int, rate: float, minimum: int) -> None:
        lengths = segments.levels(length, rate, minimum)
        assert lengths == twins.levels(length, rate, minimum)
        assert lengths[0] == length
        assert all(after < before for before, after in pairwise(lengths))
        assert lengths[-1] >= min(minimum, length)
        segments.check_lengths(lengths, length, exclusive=False)

    @given(st.integers(1, 300), st.floats(0.01, 1), st.integers(1, 300))
    def test_a_schedule_reaches_its_target_in_feasible_steps(self, length: int, rate: float, target: int) -> None:
        lengths = segments.merge_schedule(length, target, rate)
        segments.check_lengths(lengths, length)
        assert lengths[-1] == min(length, target)

    def test_a_schedule_is_the_levels_where_these_arrive(self) -> None:
        assert segments.merge_schedule(128, 32, 0.75) == segments.levels(128, minimum=32)

    @pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, 75.0])
    def test_bad_rate(self, rate: float) -> None:
        for make in (lambda: segments.levels(32, rate), lambda: segments.merge_schedule(3, 5, rate)):
            with pytest.raises(BadSetting, match=f"rate is {rate}"):
                make()

    def test_bad_lengths(self, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=r"length is 32\.5"):
            segments.levels(32.5)  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match="length is 0"):
            segments.merge_schedule(0, 5)
        with pytest.raises(BadSetting, match=r"num_levels is 2\.5"):
            segments.budget(torch.tensor([0.5]), 2.5)  # type: ignore[arg-type]


class TestOrderPreserving:
    def test_by_hand(self) -> None:
        # Pairs (0, 1) at 10°, (2, 3) at 80°, (4, 5) at 2°: two merges take the first and the last.
        frames = vectors(0, 10, 90, 170, 40, 42)
        assert segments.order_preserving(frames, 4, rate=1.0).tolist() == [[0, 0, 1, 2, 3, 3]]

    def test_merged_tokens_weigh_by_size(self) -> None:
        # 0 and 1 join, then frame 2 joins them: two parts of 0° and one of 90° lie at 27°, 53° from frame 3. So 4 and
        # 5, 45° apart, join next. Without sizes the three would lie at 45°, and frame 3 would have been nearer.
        frames = vectors(0, 0, 90, 80, 200, 245)
        assert segments.order_preserving(frames, lengths=(6, 5, 4, 3)).tolist() == [[0, 0, 0, 1, 2, 2]]

    def test_an_odd_token_stays_alone(self) -> None:
        assert segments.order_preserving(vectors(0, 50, 50), 2).tolist() == [[0, 0, 1]]

    @pytest.mark.parametrize("similarity", ["cosine", "dot"])
    @pytest.mark.parametrize("total", [33, 64, 100, 128])
    def test_equals_the_loop(self, similarity: segments.Similarity, total: int) -> None:
        frames = torch.randn(5, total, 6, dtype=torch.float64) * torch.rand(5, total, 1, dtype=torch.float64)
        lengths = segments.merge_schedule(total, 32, 0.75)
        expected = [twins.order_preserving(video, lengths, similarity) for video in frames]
        assert segments.order_preserving(frames, similarity=similarity).tolist() == expected

    def test_the_released_lengths(self) -> None:
        frames = torch.randn(3, 128, 6, dtype=torch.float64)
        expected = [twins.order_preserving(video, list(RELEASED_FRAMES), "dot") for video in frames]
        assert segments.order_preserving(frames, similarity="dot", lengths=RELEASED_FRAMES).tolist() == expected

    @given(st.integers(1, 150), st.integers(1, 40), st.floats(0.1, 1), st.integers(0, 2**31))
    def test_a_partition_in_order(self, total: int, target: int, rate: float, seed: int) -> None:
        frames = torch.randn(2, total, 3, generator=torch.Generator().manual_seed(seed))
        segment_of_frame = segments.order_preserving(frames, target, rate)
        assert_segmentation(segment_of_frame, min(total, target))
        assert_ordered(segment_of_frame)

    @pytest.mark.parametrize("total", [50, 128])
    def test_a_video_does_not_see_its_batch_mates(self, total: int) -> None:
        frames = torch.randn(7, total, 5)
        alone = torch.cat([segments.order_preserving(video[None], 20) for video in frames])
        assert segments.order_preserving(frames, 20).equal(alone)
        spread = frames.transpose(0, 1).contiguous().transpose(0, 1)  # the same videos with other strides
        assert segments.order_preserving(spread, 20).equal(alone)

    @pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
    def test_equals_the_loop_at_other_rates(self, rate: float) -> None:
        frames = torch.randn(3, 41, 6, dtype=torch.float64)
        lengths = segments.merge_schedule(41, 3, rate)
        expected = [twins.order_preserving(video, lengths) for video in frames]
        assert segments.order_preserving(frames, 3, rate).tolist() == expected

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_equal_frames_and_frames_of_zeros(self, value: float) -> None:
        segment_of_frame = segments.order_preserving(torch.full((2, 128, 4), value))
        assert_segmentation(segment_of_frame, 32)
        assert_ordered(segment_of_frame)
        assert segment_of_frame[0].equal(segment_of_frame[1])

    def test_frames_that_cancel_each_other(self) -> None:
        """Rounding may turn the square of a zero sum negative, and a product of such sums into any number."""
        frames = torch.randn(200, 4, 3)
        frames[:, 2] = -(frames[:, 0] + frames[:, 1])
        runs = neighbour_products(frames.flatten(0, 1), 4).view(200, 4, 4).double().cumsum(-1)
        squares = 2 * (runs[:, 0, 2] + runs[:, 1, 1] + runs[:, 2, 0]) - runs[:, :3, 0].sum(1)
        assert (squares < 0).any()
        assert (squares > 0).any()
        cosines = segments._pair_cosines(runs, torch.tensor([0, 0, 0, 1]).repeat(200, 1), 2)
        assert (cosines.abs() <= 1).all()

    def test_of_equal_pairs_the_earlier_is_joined_first(self) -> None:
        assert segments.order_preserving(torch.ones(1, 6, 2), 4).tolist() == [[0, 0, 1, 1, 2, 3]]

    @pytest.mark.parametrize("width", [3, 512])
    def test_repeated_frames_are_equal_to_the_last_bit(self, width: int) -> None:
        """As in a video of fewer than 128 frames: pairs of equal frames are merged first, in order."""
        twice = segments.order_preserving(torch.randn(20, 64, width).repeat_interleave(2, 1), lengths=(128, 80))
        assert twice.tolist() == [[*(frame // 2 for frame in range(96)), *range(48, 80)]] * 20
        thrice = segments.order_preserving(torch.randn(20, 16, width).repeat_interleave(3, 1), lengths=(48, 40, 36))
        assert thrice[:, :9].tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 20

    def test_repeated_frames_merge_as_in_the_released_arithmetic(self) -> None:
        """Equal pairs differ only by the rounding of their means. The loop repeats the released operations.

        Its sort is not stable, and decides which of many equal pairs are merged.
        """
        frames = segments.resample(torch.randn(6, 10, 24))
        found = segments.order_preserving(frames, similarity="dot", lengths=RELEASED_FRAMES)
        for video, row in zip(frames, found.tolist(), strict=True):
            tokens = [(frame, 1.0, [i]) for i, frame in enumerate(video)]
            for keep in RELEASED_FRAMES[1:]:
                rows = torch.stack([token for token, _, _ in tokens])
                products = (rows[0::2] * rows[1::2]).sum(1)
                best = products.argsort(descending=True)[: len(tokens) - keep].tolist()
                merged = []
                for pair in range(len(products)):
                    (a, size_a, of_a), (b, size_b, of_b) = tokens[2 * pair], tokens[2 * pair + 1]
                    if pair in best:
                        merged.append(((a * size_a + b * size_b) / (size_a + size_b), size_a + size_b, of_a + of_b))
                    else:
                        merged += [tokens[2 * pair], tokens[2 * pair + 1]]
                tokens = merged
            assert row == [next(i for i, (_, _, members) in enumerate(tokens) if f in members) for f in range(128)]

    def test_half_precision_and_any_scale(self) -> None:
        frames = torch.randn(4, 128, 64)
        expected = segments.order_preserving(frames)
        for scale in (1e9, 1e-13):
            assert segments.order_preserving(scale * frames).equal(expected)
        half = (frames * 20).half()
        assert segments.order_preserving(half).equal(segments.order_preserving(half.float()))

    def test_a_still_scene_becomes_few_clips(self) -> None:
        frames = torch.cat([torch.randn(1, 1, 8).expand(1, 64, 8), torch.randn(1, 64, 8)], 1)
        segment_of_frame = segments.order_preserving(frames)
        still, moving = segment_of_frame[0, :64].unique(), segment_of_frame[0, 64:].unique()
        assert len(still) < len(moving)

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match=r"frames has shape \(128, 4\).*'B T C'"):
            segments.order_preserving(torch.randn(128, 4))
        with pytest.raises(UnknownName, match="euclid"):
            segments.order_preserving(torch.randn(1, 128, 4), similarity="euclid")  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match=r"lengths is \[128, 32\]"):
            segments.order_preserving(torch.randn(1, 128, 4), lengths=(128, 32))
        with pytest.raises(BadSetting, match="target is 0"):
            segments.order_preserving(torch.randn(1, 128, 4), target=0)
        for cut in (segments.order_preserving, segments.uniform):
            with pytest.raises(BadSetting, match="frames is 0"):
                cut(torch.randn(2, 0, 4))
        for cut in (segments.order_preserving, segments.uniform, segments.resample):
            with pytest.raises(BadBatch, match=r"frames .*torch.int64"):
                cut(torch.ones(2, 8, 4, dtype=torch.long))
        with pytest.raises(BadSetting, match=r"lengths is \[10, 4\]"):
            segments.order_preserving_by_dot(torch.randn(1, 10, 2), (10, 4))


class TestUniform:
    def test_by_hand(self) -> None:
        assert segments.uniform(torch.randn(1, 6, 2), 3).tolist() == [[0, 0, 1, 1, 2, 2]]

    @given(st.integers(1, 200), st.integers(1, 40))
    def test_a_partition_in_order_of_equal_parts(self, total: int, target: int) -> None:
        segment_of_frame = segments.uniform(torch.randn(2, total, 1), target)
        assert_segmentation(segment_of_frame, min(total, target))
        assert_ordered(segment_of_frame)
        sizes = segments.segment_sizes(segment_of_frame, min(total, target))
        assert sizes.max() - sizes.min() <= 1


class TestConnectivity:
    def test_by_hand(self) -> None:
        # 0° and 30° are alike (cos 0.87), 30° and 60° too, 0° and 60° are not (0.5): four of six ordered pairs.
        tokens = vectors(0, 30, 60)
        assert segments.connectivity(tokens, 0.7).item() == pytest.approx(4 / 6)
        assert segments.connectivity(tokens, 0.7, transitive=True).item() == 1
        assert segments.connectivity(tokens, 0.9).item() == 0
        assert segments.connectivity(vectors(0, 0), 1.0).item() == 0  # above the threshold, not equal to it

    def test_half_precision_counts_right(self) -> None:
        tokens = torch.ones(1, 300, 4)
        for dtype in (torch.float16, torch.bfloat16):
            assert segments.connectivity(tokens.to(dtype), 0.5).item() == 1

    @pytest.mark.parametrize("transitive", [False, True])
    def test_equals_the_loop(self, transitive: bool) -> None:
        tokens = torch.randn(6, 9, 3, dtype=torch.float64)
        expected = [twins.connectivity(video, 0.6, transitive) for video in tokens]
        assert segments.connectivity(tokens, 0.6, transitive=transitive).tolist() == pytest.approx(expected)

    @given(st.integers(1, 12), st.floats(-1, 1), st.integers(0, 2**31))
    def test_a_share_that_falls_with_the_threshold(self, total: int, threshold: float, seed: int) -> None:
        tokens = torch.randn(3, total, 4, generator=torch.Generator().manual_seed(seed))
        share = segments.connectivity(tokens, threshold)
        assert ((share >= 0) & (share <= 1)).all()
        assert (segments.connectivity(tokens, threshold + 0.1) <= share).all()
        assert (segments.connectivity(tokens, threshold, transitive=True) >= share).all()
        cosines = torch.nn.functional.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)
        assume((cosines - threshold).abs().min() > 1e-5)  # or rounding decides
        scaled = tokens * (torch.rand(3, total, 1, generator=torch.Generator().manual_seed(seed)) + 0.1)
        assert segments.connectivity(scaled, threshold).equal(share)

    def test_one_token_has_no_pair(self) -> None:
        assert segments.connectivity(torch.randn(2, 1, 3), 0.5).tolist() == [0, 0]


class TestBudget:
    def test_the_released_ladder(self) -> None:
        ratio = torch.tensor([0, 0.19, 0.2, 0.39, 0.4, 0.59, 0.6, 0.79, 0.8, 1])
        assert segments.budget(ratio, 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]

    def test_six_levels(self) -> None:
        assert segments.budget(torch.tensor([0, 0.1, 0.5, 0.9, 1]), 6).tolist() == [0, 0, 3, 5, 5]

    @given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 9))
    def test_the_more_alike_the_more_is_merged(self, a: float, b: float, num_levels: int) -> None:
        low, high = segments.budget(torch.tensor(sorted((a, b))), num_levels).tolist()
        assert 0 <= low <= high < num_levels


class TestBipartite:
    def test_by_hand(self) -> None:
        # Proposals: 0 (0°) to 1 (5°), 2 (100°) to 3 (104°), 4 (6°) to 1 (5°): the two best join, both different.
        tokens = vectors(0, 5, 100, 104, 6)
        sizes = torch.ones(1, 5, dtype=torch.long)
        assert segments.bipartite(tokens, sizes, 4).tolist() == [[0, 1, 2, 3, 1]]
        assert segments.bipartite(tokens, sizes, 3).tolist() == [[0, 1, 2, 2, 1]]
        assert segments.bipartite(tokens, sizes, 2).tolist() == [[0, 0, 1, 1, 0]]  # several join token 1
        # Here 4 joins 1 as well, but the two stand where 4 stood: behind 2 and 3.
        assert segments.bipartite(tokens, sizes, 3, exclusive=True).tolist() == [[0, 2, 1, 1, 2]]

    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("total", [2, 7, 12, 32])
    def test_equals_the_loop(self, total: int, exclusive: bool) -> None:
        tokens = torch.randn(8, total, 4, dtype=torch.float64)
        sizes = torch.ones(8, total, dtype=torch.long)
        for keep in range((total + 1) // 2, total + 1):
            expected = [twins.bipartite(video, keep, exclusive) for video in tokens]
            assert segments.bipartite(tokens, sizes, keep, exclusive=exclusive).tolist() == expected

    @given(st.integers(1, 20), st.data(), st.booleans(), st.booleans())
    def test_a_partition(self, total: int, data: st.DataObject, exclusive: bool, alike: bool) -> None:
        keep = data.draw(st.integers(max((total + exclusive) // 2, 1), total))
        tokens = torch.ones(2, total, 3) if alike else torch.randn(2, total, 3)
        merged = segments.bipartite(tokens, torch.ones(2, total, dtype=torch.long), keep, exclusive=exclusive)
        (assert_partition if exclusive else assert_segmentation)(merged, keep)
        if exclusive:
            # The even tokens lead: they keep their order.
            assert (merged[:, ::2].diff(dim=1) > 0).all()
            assert segments.segment_sizes(merged, keep).max() <= 2

    def test_padding_is_matched_last(self) -> None:
        # Padding looks just like token 0, but 0 and 2 join token 1, which is less like them.
        tokens = vectors(0, 30, 60, 200, 0, 0)
        sizes = torch.tensor([[1, 1, 1, 1, 0, 0]])
        assert segments.bipartite(tokens, sizes, 4).tolist() == [[0, 0, 0, 1, 2, 3]]
        assert segments.bipartite(tokens, torch.ones_like(sizes), 4).tolist() == [[0, 1, 2, 3, 0, 0]]

    def test_an_odd_one_may_join_where_several_may(self) -> None:
        tokens, sizes = torch.randn(5, 13, 4, dtype=torch.float64), torch.ones(5, 13, dtype=torch.long)
        expected = [twins.bipartite(video, 6, False) for video in tokens]
        assert segments.bipartite(tokens, sizes, 6).tolist() == expected
        assert segments.adaptive(tokens, sizes, -1.0, [13, 6]).tolist() == expected
        with pytest.raises(BadSetting, match=r"lengths is \[13, 6\]"):
            segments.adaptive(tokens, sizes, -1.0, [13, 6], exclusive=True)

    def test_half_precision_gives_the_same_merges(self) -> None:
        tokens, sizes = torch.randn(20, 32, 64).bfloat16(), torch.ones(20, 32)
        assert segments.bipartite(tokens, sizes, 20).equal(segments.bipartite(tokens.float(), sizes, 20))

    def test_no_tokens(self) -> None:
        with pytest.raises(BadSetting, match="tokens is 0"):
            segments.bipartite(torch.randn(1, 0, 2), torch.ones(1, 0), 1)

    def test_bad_keep(self) -> None:
        with pytest.raises(BadSetting, match="keep is 2, expected 3 to 6"):
            segments.bipartite(torch.randn(1, 6, 2), torch.ones(1, 6, dtype=torch.long), 2)


class TestAdaptive:
    @pytest.mark.parametrize(("released", "lengths"), [(False, [32, 20, 12, 8, 6, 5]), (True, [32, 20, 12, 8, 5])])
    def test_equals_the_loop(self, released: bool, lengths: list[int]) -> None:
        # Videos from diverse to nearly still, so that every level occurs.
        common = torch.linspace(0, 3, 12, dtype=torch.float64)[:, None, None]
        tokens = torch.randn(12, 32, 8, dtype=torch.float64) + common * torch.randn(12, 1, 8, dtype=torch.float64)
        sizes = torch.randint(1, 9, (12, 32))
        merged = segments.adaptive(tokens, sizes, 0.7, lengths, transitive=released, exclusive=released)
        expected = [
            twins.adaptive(video, size, 0.7, lengths, released)
            for video, size in zip(tokens, sizes.tolist(), strict=True)
        ]
        assert merged.tolist() == expected
        assert {len(set(row)) for row in expected} >= {lengths[0], lengths[-1]}

    def test_only_the_ratio_of_sizes_matters(self) -> None:
        tokens, sizes = torch.randn(4, 32, 6, dtype=torch.float64) + 1, torch.randint(1, 9, (4, 32))
        for released, lengths in ((False, [32, 20, 12, 8, 6, 5]), (True, [32, 20, 12, 8, 5])):
            found = [
                segments.adaptive(tokens, each, 0.5, lengths, transitive=released, exclusive=released)
                for each in (sizes, sizes / 16)
            ]
            assert found[0].equal(found[1])

    def test_the_ends_of_the_scale(self) -> None:
        sizes = torch.ones(2, 32, dtype=torch.long)
        still, diverse = torch.ones(1, 32, 40), torch.eye(40)[None, :32]
        merged = segments.adaptive(torch.cat([still, diverse]), sizes, 0.7, segments.levels(32))
        assert [len(row.unique()) for row in merged] == [5, 32]
