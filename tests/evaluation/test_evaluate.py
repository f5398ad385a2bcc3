import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from midreel.errors import BadBatch, BadRun, BadSetting, UnknownName
from midreel.evaluation import metrics
from midreel.evaluation.evaluate import Report, evaluate
from midreel.evaluation.moments import curves, predict_moment, predictors
from midreel.methods.base import Method, evaluating
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.methods.msc import MSC, MSCConfig
from midreel.ops import scoring
from midreel.ops.moments import find_moments, fused
from midreel.types import Moment
from tests.evaluation.test_metrics import slow_average_precision

WIDTH = 6
NUM_QUERIES, NUM_VIDEOS, NUM_FRAMES, NUM_CLIPS = 11, 7, 12, 6
VIDEO_OF_QUERY = torch.tensor([0, 3, 3, 6, 1, 2, 0, 5, 6, 6, 4])
DURATIONS = torch.linspace(20, 60, NUM_VIDEOS)
# A query in four has no moment, a query in four has two.
MOMENTS = [
    tuple(Moment(start=float(row + 9 * k), end=row + 9 * k + 6.0) for k in range((1, 2, 1, 0)[row % 4]))
    for row in range(NUM_QUERIES)
]


@pytest.fixture(scope="module")
def method() -> ClipZeroShot:
    """A method that computes little. Evaluation treats all methods alike."""
    return ClipZeroShot(ClipZeroShotConfig(width=WIDTH, num_frames=NUM_FRAMES, num_clips=NUM_CLIPS, clip_weight=0.4))


@pytest.fixture(scope="module")
def msc() -> MSC:
    torch.manual_seed(1)
    return MSC(
        MSCConfig(
            video_width=WIDTH,
            text_width=WIDTH,
            width=8,
            num_heads=2,
            max_words=5,
            num_frames=NUM_FRAMES,
            num_clips=NUM_CLIPS,
        )
    )


def all_videos(method: Method, num: int = NUM_VIDEOS) -> VideoBatch:
    return method.prepare_videos(torch.randn(num, 20, WIDTH, generator=torch.Generator().manual_seed(2)))


def all_queries(num: int = NUM_QUERIES) -> QueryBatch:
    generator = torch.Generator().manual_seed(3)
    words = torch.randn(num, 5, WIDTH, generator=generator)
    mask = torch.arange(5) < torch.randint(2, 6, (num, 1), generator=generator)
    return QueryBatch(words=words, mask=mask, sentence=torch.randn(num, WIDTH, generator=generator))


def split(batch: Any, size: int) -> list[Any]:
    parts = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return [
        dataclasses.replace(batch, **{n: t[i : i + size] for n, t in parts.items() if t is not None})
        for i in range(0, len(batch), size)
    ]


def run(method: Method, video_batch: int = 3, query_batch: int = 4, **options: Any) -> Report:
    videos, queries = split(all_videos(method), video_batch), split(all_queries(), query_batch)
    return evaluate(method, videos, queries, VIDEO_OF_QUERY, **options)


class TestScores:
    def test_equal_those_of_the_full_matrix(self, msc: MSC) -> None:
        report = run(msc, keep_scores=True)
        with evaluating(msc):
            queries, videos = msc.encode_queries(all_queries()), msc.encode_videos(all_videos(msc))
            scores = msc.score(queries, videos)
            of_branch = {
                branch: scoring.cosine_max_sim(queries[branch], videos[branch].vectors, videos[branch].mask)
                for branch in ("clip", "frame")
            }
        assert report.scores is not None
        torch.testing.assert_close(report.scores, scores)
        ranks = metrics.ranks(scores, VIDEO_OF_QUERY)
        assert report.ranks == tuple(ranks.tolist())
        assert report.recalls == metrics.recalls(ranks)
        assert report.branches == {
            branch: metrics.recalls(metrics.ranks(own, VIDEO_OF_QUERY)) for branch, own in of_branch.items()
        }
        assert (report.num_queries, report.num_videos, report.num_moments) == (NUM_QUERIES, NUM_VIDEOS, 0)

    @pytest.mark.parametrize(("video_batch", "query_batch"), [(1, 11), (7, 1), (2, 3), (5, 6)])
    def test_do_not_depend_on_the_batches(self, method: ClipZeroShot, video_batch: int, query_batch: int) -> None:
        options: dict[str, Any] = {"moments": MOMENTS, "durations": DURATIONS}
        assert run(method, video_batch, query_batch, **options) == run(method, NUM_VIDEOS, NUM_QUERIES, **options)

    def test_are_kept_only_on_request(self, method: ClipZeroShot) -> None:
        assert run(method).scores is None

    def test_without_branches(self, method: ClipZeroShot) -> None:
        report = run(method, branches=False, at=(1, 2))
        assert report.branches == {}
        assert list(report.figures()) == ["R@1", "R@2", "SumR"]

    def test_generators_are_read_once(self, method: ClipZeroShot) -> None:
        def once(batches: list[Any]) -> Iterator[Any]:
            yield from batches

        videos, queries = split(all_videos(method), 3), split(all_queries(), 4)
        assert evaluate(method, once(videos), once(queries), VIDEO_OF_QUERY) == run(method)

    def test_one_query_one_video(self, method: ClipZeroShot) -> None:
        report = evaluate(
            method,
            [all_videos(method, 1)],
            [all_queries(1)],
            torch.tensor([0]),
            moments=[(Moment(start=0.0, end=30.0),)],
            durations=torch.tensor([30.0]),
        )
        assert report.ranks == (1,)
        assert report.recalls["SumR"] == 400
        assert set(report.moments) == {"found", "best clip", "best frame"}


class TestMoments:
    def test_precision_of_all_moments_only_if_a_query_has_several(self, method: ClipZeroShot) -> None:
        names = {"mAP@0.3", "mAP@0.5", "mAP@0.7"}
        single = run(method, moments=[moments[:1] for moments in MOMENTS], durations=DURATIONS)
        several = run(method, moments=MOMENTS, durations=DURATIONS)
        assert not names & set(single.moments["found"])
        assert names <= set(several.moments["found"])
        assert not names & set(several.moments["best clip"])
        with evaluating(method):
            queries, videos = method.encode_queries(all_queries()), method.encode_videos(all_videos(method))
            drawn = curves(queries, videos, VIDEO_OF_QUERY)
        listed = find_moments(fused(drawn, method.curve_weights)).listed()
        rows = [row for row, moments in enumerate(MOMENTS) if moments]
        by_hand = [
            slow_average_precision(
                [tuple(DURATIONS[VIDEO_OF_QUERY[row]].item() * edge for edge in (m.start, m.end)) for m in listed[row]],
                [(moment.start, moment.end) for moment in MOMENTS[row]],
                0.3,
            )
            for row in rows
        ]
        assert several.moments["found"]["mAP@0.3"] == pytest.approx(100 * sum(by_hand) / len(rows))

    def test_equal_those_of_each_query_alone(self, msc: MSC) -> None:
        report = run(msc, moments=MOMENTS, durations=DURATIONS)
        annotated = [row for row, moments in enumerate(MOMENTS) if moments]
        assert report.num_moments == len(annotated)
        with evaluating(msc):
            queries, videos = msc.encode_queries(all_queries()), msc.encode_videos(all_videos(msc))
        for name, predictor in predictors(msc).items():
            overlaps = []
            for row in annotated:
                own = {branch: vectors[row : row + 1] for branch, vectors in queries.items()}
                found = predict_moment(own, videos, VIDEO_OF_QUERY[row : row + 1], DURATIONS, predictor)
                each = [metrics.iou(found, torch.tensor([[m.start, m.end]])) for m in MOMENTS[row]]
                overlaps.append(torch.cat(each).max()[None])
            expected = metrics.localisation(torch.cat(overlaps))
            assert {key: report.moments[name][key] for key in expected} == pytest.approx(expected)

    def test_figures_are_a_row(self, method: ClipZeroShot) -> None:
        figures = run(method, moments=MOMENTS, durations=DURATIONS).figures()
        assert {"SumR", "clip SumR", "frame R@1", "best clip mIoU", "best frame R1@0.5"} < set(figures)

    def test_none_annotated(self, method: ClipZeroShot) -> None:
        report = run(method, moments=[()] * NUM_QUERIES)
        assert (report.num_moments, report.moments) == (0, {})

    def test_another_predictor(self, method: ClipZeroShot) -> None:
        whole = {"whole": lambda curves: np.tile([[0.0, 1.0]], (len(curves["clip"].scores), 1))}
        moments = [(Moment(start=0.0, end=DURATIONS[video].item() / 2),) for video in VIDEO_OF_QUERY]
        report = run(method, moments=moments, durations=DURATIONS, predictors=whole)
        assert report.moments["whole"]["mIoU"] == pytest.approx(50, rel=1e-6)

    def test_one_of_several_moments_is_enough(self, method: ClipZeroShot) -> None:
        """The first half of each video is predicted: 1/2 of one moment and 1/8 of another count as 1/2."""
        first_half = {"first half": lambda curves: np.tile([[0.0, 0.5]], (len(curves["clip"].scores), 1))}
        halves = [DURATIONS[video].item() / 2 for video in VIDEO_OF_QUERY]
        moments = [(Moment(start=0.0, end=half / 8), Moment(start=half / 2, end=half)) for half in halves]
        report = run(method, moments=[(), *moments[1:]], durations=DURATIONS, predictors=first_half)
        assert report.num_moments == NUM_QUERIES - 1
        assert report.moments["first half"] == pytest.approx({"R1@0.5": 100, "R1@0.7": 0, "mIoU": 50}, rel=1e-6)


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation allocates. Views do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


class TestStreaming:
    def test_largest_tensor_is_one_product_of_two_batches(self, method: ClipZeroShot) -> None:
        """Zero-shot encodes nothing, so the products are the largest tensors, larger even than the (Q, B) matrix."""
        num_queries, num_videos, query_batch, video_batch = 96, 40, 48, 10
        videos, queries = (
            split(all_videos(method, num_videos), video_batch),
            split(all_queries(num_queries), query_batch),
        )
        video_of_query = torch.arange(num_queries) % num_videos
        moments = [(Moment(start=0.0, end=5.0),)] * num_queries
        with Largest() as largest:
            evaluate(
                method, videos, queries, video_of_query, moments=moments, durations=torch.full((num_videos,), 30.0)
            )
        assert largest.numel == query_batch * video_batch * NUM_FRAMES
        assert num_queries * num_videos < largest.numel < num_queries * num_videos * NUM_CLIPS

    def test_memory_grows_only_by_the_scores(self, msc: MSC) -> None:
        with Largest() as one, evaluating(msc):
            tokens = msc.encode_videos(all_videos(msc, 2))
            msc.score(msc.encode_queries(all_queries(4)), tokens)
        num_queries, num_videos = 60, 20
        videos, queries = split(all_videos(msc, num_videos), 2), split(all_queries(num_queries), 4)
        with Largest() as many:
            evaluate(msc, videos, queries, torch.arange(num_queries) % num_videos)
        assert many.numel <= max(one.numel, num_queries * num_videos)


class TestTheMethodIsLeftAsItWas:
    def test_modes_and_random_state(self, msc: MSC) -> None:
        msc.train()
        msc.clip.eval()
        modes = [module.training for module in msc.modules()]
        state = torch.get_rng_state()
        run(msc)
        assert [module.training for module in msc.modules()] == modes
        assert torch.get_rng_state().equal(state)
        assert torch.is_grad_enabled()

    def test_also_after_an_error(self, msc: MSC) -> None:
        msc.train()
        with pytest.raises(BadBatch):
            evaluate(msc, [], [all_queries()], VIDEO_OF_QUERY)
        assert msc.training

    def test_training_continues_after_it(self, msc: MSC) -> None:
        run(msc)
        videos = msc.encode_videos(all_videos(msc))
        msc.score(msc.encode_queries(all_queries()), videos).sum().backward()
        msc.zero_grad()


class TestReport:
    def test_json_round_trip(self, method: ClipZeroShot) -> None:
        report = run(method, moments=MOMENTS, durations=DURATIONS, keep_scores=True)
        text = report.to_json()
        again = Report.from_json(text)
        assert again == report
        assert again.scores is None
        assert again.to_json() == text
        assert list(json.loads(text))[:3] == ["num_queries", "num_videos", "num_moments"]

    def test_frozen(self, method: ClipZeroShot) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            run(method).num_videos = 3  # type: ignore[misc]

    def test_not_json(self) -> None:
        with pytest.raises(BadRun, match="not JSON"):
            Report.from_json("{")

    @pytest.mark.parametrize("text", ["[]", '{"recalls": {}}'])
    def test_not_a_report(self, text: str) -> None:
        with pytest.raises(BadRun, match="num_queries"):
            Report.from_json(text)


class TestBadInput:
    def test_no_videos(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadBatch, match="videos is empty"):
            evaluate(method, [], [all_queries()], VIDEO_OF_QUERY)

    def test_no_queries(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadBatch, match="queries is empty"):
            evaluate(method, [all_videos(method)], [], torch.zeros(0, dtype=torch.long))

    def test_queries_of_another_split(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadBatch, match="4 queries, expected 11"):
            evaluate(method, [all_videos(method)], [all_queries(4)], VIDEO_OF_QUERY)

    def test_an_unknown_video(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadBatch, match=r"\[6, 6, 6\], expected 0 to 5"):
            evaluate(method, [all_videos(method, 6)], [all_queries()], VIDEO_OF_QUERY)

    def test_moments_of_another_split(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadBatch, match="moments has 2 entries, expected 11"):
            run(method, moments=[(), ()])

    def test_no_durations(self, method: ClipZeroShot) -> None:
        with pytest.raises(BadSetting, match=r"durations is None.* 9 queries"):
            run(method, moments=MOMENTS)

    @pytest.mark.parametrize("num", [NUM_VIDEOS - 1, NUM_VIDEOS + 2])
    def test_other_durations(self, method: ClipZeroShot, num: int) -> None:
        with pytest.raises(BadBatch, match=f"durations has {num} values, expected 7"):
            run(method, moments=MOMENTS, durations=torch.full((num,), 9.0))

    @pytest.mark.parametrize("seconds", [0.0, -1.0, torch.nan, torch.inf])
    def test_invalid_durations(self, method: ClipZeroShot, seconds: float) -> None:
        with pytest.raises(BadSetting, match="durations"):
            run(method, moments=MOMENTS, durations=torch.full((NUM_VIDEOS,), seconds))

    def test_nan_features(self, method: ClipZeroShot) -> None:
        queries = all_queries()
        assert queries.sentence is not None
        queries.sentence[5] = torch.nan
        with pytest.raises(BadBatch, match=r"7 of 77 .*query 5 and video 0"):
            evaluate(method, split(all_videos(method), 3), [queries], VIDEO_OF_QUERY)

    def test_a_predictor_of_an_unknown_branch(self, method: ClipZeroShot) -> None:
        def of_scenes(curves: Any) -> Any:
            if "scene" not in curves:
                raise UnknownName.among("branch", "scene", curves)

        with pytest.raises(UnknownName, match=r"'scene'.*clip, frame"):
            run(method, moments=MOMENTS, durations=DURATIONS, predictors={"scene": of_scenes})
