"""Adapt a library to feedback: the loss, the folds, the decision, and what a user gets."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.errors import BadSetting
from midreel.experiments import adapt
from midreel.experiments import adaptation_learning as learning
from midreel.experiments.adapt import Figures, Outcome
from midreel.library.feedback import FeedbackLog
from midreel.library.layout import Layout
from midreel.library.searcher import Searcher
from tests.library.small import COLOURS, Eye, Killed, everything, film, index, kill, opened

pytestmark = pytest.mark.slow

PAIRS = [f"{first} {second}" for k, first in enumerate(COLOURS) for second in list(COLOURS)[k + 1 :]]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed")
    for colour in COLOURS:
        film(folder / "videos" / f"{colour}.mp4", colour)
    index(folder / "library", folder / "videos")
    return folder


@pytest.fixture
def library(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed / "library", tmp_path / "library"))


@pytest.fixture
def searcher(library: Path) -> Iterator[Searcher]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        yield searcher


def names(searcher: Searcher, query: str) -> list[str]:
    return [hit.path.stem for hit in searcher.search(query)]


def scores(searcher: Searcher, query: str) -> dict[str, float]:
    """Return the score of each video. Equal scores are in any order, so tests compare scores and not ranks."""
    return {hit.path.stem: hit.score for hit in searcher.search(query)}


def prefer_the_second(searcher: Searcher, queries: list[str]) -> dict[str, str]:
    """Say "not this" to the first hit, and "this is it" to the second. Return the second by query."""
    second = {}
    for query in queries:
        wrong, right, *_ = searcher.search(query)
        searcher.add_feedback(query, wrong.video_id, match=False, start=0, end=1)
        searcher.add_feedback(query, right.video_id, start=0, end=1)
        second[query] = right.path.stem
    return second


def run(library: Path, **options: object) -> adapt.AdaptReport:
    with opened(library) as writer:
        return adapt.adapt(writer, **options)  # type: ignore[arg-type]


def test_a_library_learns_what_its_user_prefers_and_can_forget_it(library: Path, searcher: Searcher) -> None:
    before, pairs = everything(library), {query: scores(searcher, query) for query in PAIRS}
    wanted = prefer_the_second(searcher, PAIRS)
    report = run(library)
    assert report.switched
    assert (report.num_feedback, report.num_sentences, report.num_skipped) == (12, 6, 0)
    assert (report.before.first, report.after.first) == (0.0, 100.0)
    assert (report.before.wrong_first, report.after.wrong_first) == (100.0, 0.0)
    assert {query: names(searcher, query)[0] for query in PAIRS} == wanted
    assert everything(library) == before  # single colours are unlike all sentences with feedback
    assert "--undo" in report.text
    with opened(library) as writer:
        adapt.undo(writer)
    assert {query: scores(searcher, query) for query in PAIRS} == pairs
    assert len(searcher.feedback()) == 12
    with opened(library) as writer, pytest.raises(BadSetting, match="not adapted"):
        adapt.undo(writer)


def test_not_this_alone_lowers_a_video(library: Path, searcher: Searcher) -> None:
    wanted = prefer_the_second(searcher, PAIRS[:5])
    wrong, right, *_ = searcher.search(PAIRS[5])
    searcher.add_feedback(PAIRS[5], wrong.video_id, match=False)
    run(library)
    assert names(searcher, PAIRS[5])[0] == right.path.stem
    assert names(searcher, PAIRS[0])[0] == wanted[PAIRS[0]]


def test_learns_again_from_all_feedback_and_forgets_what_was_deleted(library: Path, searcher: Searcher) -> None:
    before = scores(searcher, PAIRS[0])
    prefer_the_second(searcher, PAIRS)
    run(library)
    assert scores(searcher, PAIRS[0]) != before
    for each in searcher.feedback(query=PAIRS[0]):
        searcher.remove_feedback(each.id)
    report = run(library)
    assert report.num_sentences == 5
    assert scores(searcher, PAIRS[0]) == before
    assert len(Layout(library).generations()) == 1


def test_the_library_does_not_switch_if_held_out_feedback_gets_worse(
    library: Path, searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer_the_second(searcher, PAIRS)
    before, serving = everything(library), Layout(library).settings().serving
    monkeypatch.setattr(adapt, "cross_validated", lambda *_: Figures(first=0.0, reciprocal_rank=0.1, wrong_first=100.0))
    report = run(library)
    assert not report.switched
    assert Layout(library).settings().serving == serving
    assert everything(library) == before
    assert "not adapted" in report.text


def test_a_killed_adaptation_changes_nothing_and_can_be_repeated(library: Path, searcher: Searcher) -> None:
    wanted = prefer_the_second(searcher, PAIRS)
    with pytest.raises(Killed):
        run(library, progress=kill)
    assert names(searcher, PAIRS[0])[1] == wanted[PAIRS[0]]
    assert len(searcher.feedback()) == 12
    run(library)
    assert names(searcher, PAIRS[0])[0] == wanted[PAIRS[0]]
    assert len(Layout(library).generations()) == 1


def test_feedback_on_removed_videos_is_skipped(indexed: Path, library: Path, searcher: Searcher) -> None:
    prefer_the_second(searcher, PAIRS)
    gone = searcher.search("grey")[0].video_id
    searcher.remove(gone)
    given = searcher.feedback()
    on_gone = sum(each.video_id == gone for each in given)
    assert on_gone
    with pytest.raises(BadSetting, match=str(12 - on_gone)):
        run(library)
    for number in range(on_gone):
        video_id = searcher.search("red")[0].video_id
        FeedbackLog(library).add(
            searcher._catalogue.video(video_id),  # type: ignore[arg-type]
            f"red number {number}",
            match=True,
        )
    assert run(library).num_skipped == on_gone


def test_too_little_feedback_is_refused(library: Path, searcher: Searcher) -> None:
    with pytest.raises(BadSetting, match="0 pieces"):
        run(library)
    prefer_the_second(searcher, PAIRS[:3])
    with pytest.raises(BadSetting, match="6 pieces"):
        run(library)
    searcher.clear_feedback()
    video_id = searcher.search("red")[0].video_id
    for number in range(12):
        searcher.add_feedback(f"red {number}", video_id, match=False)
    with pytest.raises(BadSetting, match="this is it"):
        run(library)


# ---------------------------------------------------------------- parts


def test_the_loss_of_a_hand_computed_case() -> None:
    """Scaled scores are log 3, log 1 and log 4; the third column is not allowed. So p = 3/4 and 1/4.

    The first sentence has a match with p = 3/4 and refuses p = 1/4: - log 3/4 - log 3/4. The second only refuses 3/4.
    """
    scores = torch.tensor([[3.0, 1.0, 4.0], [3.0, 1.0, 4.0]]).log() / learning.SCALE
    allowed = torch.tensor([[True, True, False]] * 2)
    match = torch.tensor([[True, False, False], [False, False, False]])
    refused = torch.tensor([[False, True, False], [True, False, False]])
    loss = learning.feedback_loss(scores, allowed, match, refused)
    assert float(loss) == pytest.approx(-2 * np.log(3 / 4) - np.log(1 / 4), abs=1e-5)


def test_the_loss_stays_finite_if_a_refused_video_is_certain() -> None:
    scores = torch.tensor([[100.0, 0.0]], requires_grad=True)
    refused = torch.tensor([[True, False]])
    loss = learning.feedback_loss(scores, torch.ones(1, 2).bool(), torch.zeros(1, 2).bool(), refused)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()  # type: ignore[union-attr]


def test_the_score_is_the_one_of_a_search(library: Path) -> None:
    with opened(library) as writer:
        texts = Eye().encode_texts(PAIRS)
        vectors = writer.encoder.encode_queries(texts)
        found = writer.index.search(vectors, top=9, exact=True)
        ids = writer.index.video_ids()
        rows, form = (
            learning._rows([learning._windows(writer, video_id) for video_id in ids]),
            learning._Form.of(writer.index),
        )
        queries = {branch: torch.from_numpy(each) for branch, each in vectors.items()}
        scores = learning.scores_of(queries, learning._best_vectors(queries, rows, form), form)
    for row, matches in enumerate(found):
        for match in matches:
            assert float(scores[row, ids.index(match.video_id)]) == pytest.approx(match.score, abs=0.02)


def test_folds_hold_each_sentence_once_and_do_not_depend_on_the_order() -> None:
    queries = [f"sentence {number}" for number in range(23)]
    parts = adapt.folds(queries)
    assert sorted(row for part in parts for row in part) == list(range(23))
    assert {len(part) for part in parts} == {4, 5}
    turned = adapt.folds(queries[::-1])
    assert [[queries[row] for row in part] for part in parts] == [
        [queries[22 - row] for row in part] for part in turned
    ]
    assert len(adapt.folds(["a", "b"])) == 2


def test_figures_of_a_hand_computed_case() -> None:
    found = [
        Outcome(rank=1, wrong_first=False),
        Outcome(rank=4, wrong_first=True),
        Outcome(rank=0, wrong_first=None),
        Outcome(rank=None, wrong_first=True),
    ]
    figures = adapt.summarised(found)
    assert figures.first == pytest.approx(100 / 3)
    assert figures.reciprocal_rank == pytest.approx((1 + 1 / 4) / 3)
    assert figures.wrong_first == pytest.approx(200 / 3)
    assert adapt.summarised(found[::-1]) == figures


def test_figures_do_not_depend_on_the_order() -> None:
    """Otherwise a model that is as good as another would look worse after a division into folds."""
    draw = np.random.default_rng(0)
    found = [Outcome(rank=int(rank), wrong_first=None) for rank in draw.integers(0, 50, 999)]
    assert adapt.summarised(found) == adapt.summarised([found[k] for k in draw.permutation(999)])
