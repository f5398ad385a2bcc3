"""The contract of all indexes: each one runs these tests and is compared with the exact index."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, MissingTokens
from midreel.index import EmbeddedIndex, ExactIndex, Index, Match, rerank
from midreel.index.embedded import ann, cascade
from midreel.index.postgres import PostgresIndex
from midreel.index.qdrant import QdrantIndex
from midreel.ops.scoring import branch_score
from midreel.types import COSINE, Similarities, Similarity, Tokens, with_norms
from tests.index.library import (
    ATTENTION,
    DOT,
    FORMS,
    WEIGHTS,
    WIDTH,
    qdrant_client,
    queries,
    queries_of,
    tokens,
    video,
    video_of,
)
from tools.qdrant_core import CoreClient

Make = Callable[..., Index]
KINDS = ["exact", "numpy", "numkong", "trained", "postgres", "graph", "qdrant", "qdrant core"]


class TrainedIndex(EmbeddedIndex):
    """An index that always has a compressed copy of all its windows."""

    _positions_trained = 0

    def search(self, *arguments: Any, **settings: Any) -> list[list[Match]]:
        if self._positions_trained != self._storage.roster.num_positions:
            self._positions_trained = self._storage.roster.num_positions
            self.train()
            assert len(self) <= 1 or self._cascade.trained is not None
        return super().search(*arguments, **settings)


class GraphIndex(PostgresIndex):
    """An index in PostgreSQL that always has a graph of all its videos."""

    _ids_in_graph: tuple[str, ...] = ()

    def search(self, *arguments: Any, **settings: Any) -> list[list[Match]]:
        ids = tuple(self.video_ids())
        if ids != self._ids_in_graph:
            self._ids_in_graph = ids
            graph = self.build_graph(least=0.0)
            assert graph is not None or not ids or self.similarities
        return super().search(*arguments, **settings)


class Place(NamedTuple):
    """Where indexes can be created: a folder, or a database and the first part of a name."""

    folder: Path
    url: str
    name: str


def _make(
    kind: str,
    place: Place,
    weights: dict[str, float] = WEIGHTS,
    width: int = WIDTH,
    similarities: Similarities | None = None,
) -> Index:
    if kind == "exact":
        return ExactIndex(weights, similarities)
    if kind in ("postgres", "graph"):
        found = GraphIndex if kind == "graph" else PostgresIndex
        return found.create(place.url, name=place.name, branch_weights=weights, width=width, similarities=similarities)
    if kind in ("qdrant", "qdrant core"):
        client = qdrant_client() if kind == "qdrant" else CoreClient(place.folder)
        return QdrantIndex.create(
            client, name=place.name, branch_weights=weights, width=width, similarities=similarities
        )
    folder = place.folder
    if kind == "trained":
        return TrainedIndex.create(folder, branch_weights=weights, width=width, similarities=similarities)
    return EmbeddedIndex.create(folder, branch_weights=weights, width=width, similarities=similarities, kernel=kind)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    url, name = "", ""
    if request.param in ("postgres", "graph"):
        url, name = request.getfixturevalue("postgres_url"), request.getfixturevalue("schema_name")
    if request.param in ("qdrant", "qdrant core"):
        name = f"test_{uuid.uuid4().hex[:12]}"
    if request.param == "numkong":
        pytest.importorskip("numkong", reason="numkong is not installed: pip install midreel[fast]")
    if request.param == "trained":
        pytest.importorskip("faiss", reason="faiss is not installed: pip install midreel[fast]")
        monkeypatch.setattr(ann, "LADDER", (32, 64))
        monkeypatch.setattr(ann, "RECALL", 0.0)
    monkeypatch.setattr(ann, "_NUM_QUERIES", 6)
    # So few that every stage drops some windows.
    monkeypatch.setattr(cascade, "CANDIDATES", 24)
    monkeypatch.setattr(cascade, "FINALISTS", 12)
    monkeypatch.setattr(rerank, "CANDIDATES", 24)
    made: list[Index] = []

    def create(**settings: Any) -> Index:
        place = Place(tmp_path / str(len(made)), url, f"{name}_{len(made)}")
        made.append(_make(request.param, place, **settings))
        return made[-1]

    yield create
    for index in made:
        if isinstance(index, QdrantIndex):
            index._server.call("delete_collection", index.collection)  # it may be on a server of others
        index.close()


def oracle(index: Index) -> ExactIndex:
    """Return an exact index of the tokens that another index stores."""
    exact = ExactIndex(index.branch_weights, index.similarities)
    for video_id in index.video_ids():
        exact.add(video_id, index.tokens(video_id))
    return exact


def assert_alike(found: list[list[Match]], expected: list[list[Match]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [match.score for match in ours] == pytest.approx([match.score for match in theirs], abs=1e-4)
        for match, twin in zip(ours, theirs, strict=True):
            if match.video_id == twin.video_id:  # else they are as good as equal
                assert match.branch_scores == pytest.approx(twin.branch_scores, abs=1e-4)


def test_an_empty_index_finds_nothing(make: Make) -> None:
    index = make()
    assert index.search(queries(0)) == [[], [], []]
    assert len(index) == 0
    assert index.video_ids() == []
    assert "a" not in index


def test_the_best_videos_come_first(make: Make) -> None:
    index, exact = make(), ExactIndex(WEIGHTS)
    for number in range(40):
        index.add(f"v{number}", video(number))
        exact.add(f"v{number}", video(number))
    expected = exact.search(queries(1))
    for ours, theirs in zip(index.search(queries(1), exact=True), expected, strict=True):
        assert len(ours) == 10
        assert [match.score for match in ours] == sorted((match.score for match in ours), reverse=True)
        # Nine bits cost a few thousandths at this width.
        assert [match.score for match in ours] == pytest.approx([match.score for match in theirs], abs=0.01)
        assert ours[0].score == pytest.approx(sum(w * ours[0].branch_scores[b] for b, w in WEIGHTS.items()))
    for ours, theirs in zip(index.search(queries(1)), expected, strict=True):
        names = {match.video_id for match in theirs}
        assert len(names & {match.video_id for match in ours}) >= 7  # random vectors are hard for so few candidates
    assert_alike(index.search(queries(1), exact=True), oracle(index).search(queries(1)))


def test_stored_tokens_are_unit_vectors_without_masked_tokens(make: Make) -> None:
    index, added = make(), video(3, windows=2)
    index.add("a", added)
    kept = index.tokens("a")
    for branch in WEIGHTS:
        assert kept[branch].mask.sum(1).tolist() == added[branch].mask.sum(1).tolist()
        real = torch.nn.functional.normalize(added[branch].vectors[added[branch].mask], dim=-1)
        assert kept[branch].vectors[kept[branch].mask] == pytest.approx(real.numpy(), abs=0.01)
        assert np.array_equal(kept[branch].spans[kept[branch].mask], added[branch].spans[added[branch].mask])


def test_masked_tokens_are_never_found(make: Make) -> None:
    index = make()
    both = torch.stack((torch.eye(WIDTH)[0], torch.eye(WIDTH)[1]))[None]
    hidden = tokens(both)
    hidden.mask[0, 1] = False
    index.add("a", {"clip": hidden, "frame": hidden})
    (match,) = index.search({branch: torch.eye(WIDTH)[1:2] for branch in WEIGHTS})[0]
    assert match.score == pytest.approx(0, abs=0.01)


def test_adding_a_video_again_replaces_it_and_moves_it_to_the_end(make: Make) -> None:
    index = make()
    for number, name in enumerate("aba"):
        index.add(name, video(number))
    assert index.video_ids() == ["b", "a"]
    assert len(index) == 2
    other = make()
    other.add("a", video(2))
    assert np.array_equal(index.tokens("a")["clip"].vectors, other.tokens("a")["clip"].vectors)


def test_removed_videos_are_not_found(make: Make) -> None:
    index = make()
    for number in range(20):
        index.add(f"v{number}", video(number))
    index.remove("v3")
    assert "v3" not in index
    assert len(index) == 19
    assert "v3" not in {match.video_id for match in index.search(queries(1, 1), top=20)[0]}
    assert len(index.search(queries(1, 1), top=20)[0]) == 19
    with pytest.raises(MissingTokens, match="'v3'"):
        index.remove("v3")
    with pytest.raises(MissingTokens, match="'v3'"):
        index.tokens("v3")


def test_among_restricts_before_candidates_are_chosen(make: Make) -> None:
    index = make()
    for each in range(60):
        index.add(f"v{each}", video(each))
    ranked = [match.video_id for match in index.search(queries(2, 1), top=60, exact=True)[0]]
    for number in (0, 1, 7, 35):
        worst = ranked[60 - number :]
        for sure in (False, True):
            found = index.search(queries(2, 1), top=5, among=[*worst, "unknown"], exact=sure)
            assert [match.video_id for match in found[0]] == worst[:5]


def test_a_video_scores_as_its_best_window(make: Make) -> None:
    index = make()
    for each in range(12):
        index.add(f"v{each}", video(each, windows=1 + each % 3))
    found, expected = index.search(queries(5)), oracle(index).search(queries(5))
    assert [[match.video_id for match in matches] for matches in found] == [
        [match.video_id for match in matches] for matches in expected
    ]
    assert_alike(found, expected)
    for match in found[0]:  # each window as a video of its own
        windows = ExactIndex(WEIGHTS)
        kept = index.tokens(match.video_id)
        for number in range(len(kept["frame"])):
            part = {
                branch: Tokens(**{name: array[number : number + 1] for name, array in vars(tokens).items()})
                for branch, tokens in kept.items()
            }
            windows.add(f"window {number}", part)
        first = {branch: vectors[:1] for branch, vectors in queries(5).items()}
        assert windows.search(first)[0][0].score == pytest.approx(match.score, abs=1e-4)


def test_long_videos_do_not_crowd_out_the_others(make: Make) -> None:
    index = make()
    long = video(0, windows=120)
    for part in long.values():
        part.vectors[:] = torch.eye(WIDTH)[0]
    index.add("long", long)
    for each in range(15):
        index.add(f"v{each}", video(each))
    found = index.search({branch: torch.eye(WIDTH)[:1] for branch in WEIGHTS}, top=10)[0]
    assert found[0].video_id == "long"
    assert len({match.video_id for match in found}) == 10
    assert len({match.video_id for match in found}) == 10


def test_equal_videos_come_in_the_order_of_addition(make: Make) -> None:
    index = make()
    for name in "dacb":
        index.add(name, video(1))
    assert [match.video_id for match in index.search(queries(0, 1))[0]] == ["d", "a", "c", "b"]


def test_a_branch_without_weight_is_stored_but_not_scored(make: Make) -> None:
    index = make(weights={"clip": 0.0, "frame": 1.0})
    for each in range(40):
        index.add(f"v{each}", video(each))
    asked = queries(3)
    found = index.search(asked, exact=True)
    assert found[0][0].score == pytest.approx(found[0][0].branch_scores["frame"])
    assert_alike(found, oracle(index).search(asked))
    assert index.tokens("v0")["clip"].mask.any()


def test_one_branch_is_enough(make: Make) -> None:
    index = make(weights={"frame": 1.0})
    for each in range(40):
        index.add(f"v{each}", {"frame": video(each)["frame"]})
    asked = {"frame": queries(3)["frame"]}
    assert_alike(index.search(asked, exact=True), oracle(index).search(asked))


def test_zero_vectors_score_zero(make: Make) -> None:
    index = make()
    blank = tokens(torch.zeros(1, 3, WIDTH))
    index.add("a", {"clip": blank, "frame": blank})
    assert [match.score for match in index.search(queries(0, 1))[0]] == [0]
    assert [match.score for match in index.search({branch: torch.zeros(1, WIDTH) for branch in WEIGHTS})[0]] == [0]


def test_the_exact_search_ranks_as_evaluation_does(make: Make) -> None:
    from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig

    method = ClipZeroShot(ClipZeroShotConfig(width=WIDTH, num_frames=8, num_clips=4, clip_weight=0.3))
    videos = method.encode_videos(method.prepare_videos(torch.randn(30, 12, WIDTH)))
    asked = queries(9, 8)
    index = make(weights=method.branch_weights)
    for number in range(30):
        index.add(
            str(number),
            {
                branch: type(part)(
                    vectors=part.vectors[number][None], mask=part.mask[number][None], spans=part.spans[number][None]
                )
                for branch, part in videos.items()
            },
        )
    scores = method.score(asked, videos)
    for query, matches in enumerate(index.search(asked, top=30, exact=True)):
        ranked = torch.tensor([int(match.video_id) for match in matches])
        assert (scores[query, ranked].diff() < 0.01).all()
        assert len(ranked.unique()) == 30


def test_compaction_does_not_change_results(make: Make) -> None:
    index = make()
    for number in range(30):
        index.add(f"v{number}", video(number, windows=1 + number % 2))
    for number in range(0, 30, 3):
        index.remove(f"v{number}")
    index.add("v1", video(77))
    before, ids = index.search(queries(4)), index.video_ids()
    index.compact()
    assert index.search(queries(4)) == before
    assert index.video_ids() == ids
    index.add("v0", video(0))
    assert index.video_ids() == [*ids, "v0"]


@pytest.mark.usefixtures("unchecked")
def test_invalid_videos_and_queries_are_rejected(make: Make) -> None:
    index = make()
    index.add("a", video(0))
    with pytest.raises(BadSetting, match="video_id"):
        index.add("", video(0))
    with pytest.raises(BadBatch, match=r"branches \['clip'\], expected \['clip', 'frame'\]"):
        index.add("b", {"clip": video(0)["clip"]})
    with pytest.raises(BadBatch, match="width 8, expected 24"):
        index.add("b", video(0, width=8))
    with pytest.raises(BadBatch, match=r"\{'clip': 1, 'frame': 2\} windows"):
        index.add("b", {"clip": video(0)["clip"], "frame": video(0, windows=2)["frame"]})
    broken = video(0)
    broken["clip"].vectors[:] = torch.nan
    with pytest.raises(BadBatch, match="not finite"):
        index.add("b", broken)
    hidden = video(0)
    hidden["frame"].mask[:] = False
    with pytest.raises(BadBatch, match="without frame tokens"):
        index.add("b", hidden)
    with pytest.raises(BadBatch, match=r"\['frame'\]"):
        index.search({"clip": queries(0)["clip"]})
    with pytest.raises(BadBatch, match="width 8, expected 24"):
        index.search(queries(0, width=8))
    with pytest.raises(BadBatch, match="not finite"):
        index.search({branch: torch.full((1, WIDTH), torch.nan) for branch in WEIGHTS})
    with pytest.raises(BadSetting, match="top is 0"):
        index.search(queries(0), top=0)
    assert index.video_ids() == ["a"]


@pytest.mark.parametrize("weights", [{}, {"a": -1.0}, {"a": 0.0}, {"a": float("nan")}])
def test_invalid_weights_are_rejected(make: Make, weights: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="branch_weights"):
        make(weights=weights)


# ---------------------------------------------------------------- similarities


def filled(make: Make, forms: str, number: int) -> tuple[Index, list[dict[str, Tokens]]]:
    """Return an index of random videos, and their tokens."""
    weights, similarities = FORMS[forms]
    index = make(weights=weights, similarities=similarities)
    videos = [video_of(weights, seed, windows=1 + seed % 2) for seed in range(number)]
    named = [(str(name), each) for name, each in enumerate(videos)]
    if isinstance(index, EmbeddedIndex | PostgresIndex | QdrantIndex):
        index.add_all(named)
    else:
        for name, each in named:
            index.add(name, each)
    return index, videos


def expected_scores(forms: str, asked: dict[str, Tensor], videos: list[dict[str, Tokens]]) -> Tensor:
    """Return the scores [Q, videos] that training and evaluation compute."""
    weights, similarities = FORMS[forms]
    of_windows = [
        sum(weights[b] * branch_score(b, similarities.get(b, COSINE), asked, video) for b in weights if weights[b])
        for video in videos
    ]
    return torch.stack([torch.as_tensor(scores).amax(1) for scores in of_windows], 1)


@pytest.mark.parametrize("forms", FORMS)
def test_every_similarity_scores_as_evaluation_does(make: Make, forms: str) -> None:
    index, videos = filled(make, forms, 24)
    asked = queries_of(FORMS[forms][0], 1, 6)
    scores = expected_scores(forms, asked, videos)
    tolerance = 1e-5 if isinstance(index, ExactIndex) else 0.03  # nine bits cost more at this width
    found = index.search(asked, top=24, exact=True)
    for row, matches in zip(scores, found, strict=True):
        assert len(matches) == 24
        assert [match.score for match in matches] == sorted((match.score for match in matches), reverse=True)
        expected = [float(row[int(match.video_id)]) for match in matches]
        assert [match.score for match in matches] == pytest.approx(expected, abs=tolerance * float(scores.abs().max()))
        assert set(matches[0].branch_scores) == set(FORMS[forms][0]) - {"key"}
    assert_alike(found, oracle(index).search(asked, top=24))


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.slow
def test_candidates_include_the_best_videos_of_every_similarity(make: Make, forms: str) -> None:
    index, _ = filled(make, forms, 60)
    same = queries_of(["any"], 2, 8)["any"]
    asked = dict.fromkeys(FORMS[forms][0], same)
    found, every = index.search(asked, top=3), index.search(asked, top=3, exact=True)
    pairs = [{m.video_id for m in a} & {m.video_id for m in b} for a, b in zip(found, every, strict=True)]
    assert sum(map(len, pairs)) >= 18  # of 24: random vectors are hard for so few candidates
    assert all(len(matches) == 3 for matches in found)


@pytest.mark.parametrize("forms", FORMS)
def test_lengths_are_kept_where_they_count(make: Make, forms: str) -> None:
    index, videos = filled(make, forms, 2)
    long_branches = with_norms(FORMS[forms][1])
    assert index.similarities == FORMS[forms][1]
    for branch, kept in index.tokens("1").items():
        added = videos[1][branch]
        real, stored = added.vectors[added.mask].numpy(), kept.vectors[kept.mask]
        lengths = np.linalg.norm(real, axis=1) if branch in long_branches else np.ones(len(real))
        assert np.linalg.norm(stored, axis=1) == pytest.approx(lengths, rel=1e-4)
        cosines = (stored * real).sum(1) / np.linalg.norm(real, axis=1) / lengths
        assert cosines == pytest.approx(np.ones(len(real)), abs=1e-3)


def test_zero_and_equal_vectors_of_every_similarity(make: Make) -> None:
    weights, similarities = FORMS["all"]
    index = make(weights=weights, similarities=similarities)
    blank = tokens(torch.zeros(1, 3, WIDTH))
    index.add("blank", dict.fromkeys(weights, blank))
    for name in "dacb":
        index.add(name, video_of(weights, 1))
    asked = queries_of(weights, 0, 1)
    scores = {match.video_id: match.score for match in index.search(asked)[0]}
    assert scores["blank"] == 0
    assert [name for name in scores if name != "blank"] == ["d", "a", "c", "b"]
    nothing = {branch: torch.zeros(1, WIDTH) for branch in weights}
    assert [match.score for match in index.search(nothing)[0]] == [0] * 5


def test_padding_does_not_change_the_scores_of_similarities(make: Make) -> None:
    weights, similarities = FORMS["all"]
    index = make(weights=weights, similarities=similarities)
    plain = {branch: tokens(part.vectors[:, :4]) for branch, part in video_of(weights, 1).items()}
    index.add("plain", plain)
    padded = {branch: tokens(torch.cat((part.vectors, 1e6 + part.vectors), 1)) for branch, part in plain.items()}
    for part in padded.values():
        part.mask[:, 4:] = False
    index.add("padded", padded)
    for first, second in index.search(queries_of(weights, 3)):
        assert first.video_id == "plain"
        assert (first.score, first.branch_scores) == (second.score, second.branch_scores)


def test_compaction_and_removal_with_similarities(make: Make) -> None:
    index, _ = filled(make, "all", 20)
    for name in range(0, 20, 3):
        index.remove(str(name))
    asked = queries_of(FORMS["all"][0], 4)
    before = index.search(asked)
    index.compact()
    assert index.search(asked) == before
    assert all(match.video_id not in {"0", "3", "6"} for matches in before for match in matches)


@pytest.mark.usefixtures("unchecked")
def test_tokens_that_do_not_fit_the_similarities(make: Make) -> None:
    weights, similarities = FORMS["all"]
    index = make(weights=weights, similarities=similarities)
    good = video_of(weights, 0)
    other = replace(good["key"], mask=~good["key"].mask)
    other.mask[:, 0] = True
    with pytest.raises(BadBatch, match="key and frame"):
        index.add("a", good | {"key": other})
    short = tokens(good["key"].vectors[:, :5])
    with pytest.raises(BadBatch, match="key and frame"):
        index.add("a", good | {"key": short})
    long = replace(good["scene"], vectors=torch.full_like(good["scene"].vectors, 1e30))
    with pytest.raises(BadBatch, match=r"scene tokens of length .*1e\+30"):
        index.add("a", good | {"scene": long})
    index.add("long", good | {"scene": replace(long, vectors=long.vectors / 1e2)})
    asked = queries_of(weights, 0, 1)
    asked["scene"] = asked["scene"].abs() * 1e30
    assert index.search(asked)[0][0].score > 1e55


@pytest.mark.parametrize(
    ("weights", "similarities"),
    [
        ({"clip": 1.0}, {"frame": DOT}),
        ({"clip": 1.0, "frame": 1.0}, {"frame": ATTENTION}),  # no branch of keys
        ({"frame": 1.0, "key": 0.0}, {"frame": Similarity(kind="attention", guide="frame", keys="key")}),
    ],
)
def test_invalid_similarities_are_rejected(make: Make, weights: dict[str, float], similarities: Similarities) -> None:
    with pytest.raises(BadSetting, match="similarities"):
        make(weights=weights, similarities=similarities)


def test_cosines_need_not_be_listed(make: Make) -> None:
    assert make(similarities={"clip": COSINE}).similarities == {}


class Machine(RuleBasedStateMachine):
    """After any sequence of changes, an embedded index has the same videos as the exact one."""

    weights: dict[str, float] = WEIGHTS
    similarities: Similarities | None = None

    def video(self, seed: int, windows: int = 1) -> dict[str, Tokens]:
        return video_of(self.weights, seed, windows=windows)

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.place = tempfile.TemporaryDirectory()
        self.index = EmbeddedIndex.create(
            self.place.name, branch_weights=self.weights, width=WIDTH, similarities=self.similarities
        )
        self.twin = ExactIndex(self.weights, self.similarities)

    @rule(name=st.sampled_from("abcdefgh"), seed=st.integers(0, 50), windows=st.integers(1, 3))
    def add(self, name: str, seed: int, windows: int) -> None:
        for index in (self.index, self.twin):
            index.add(name, self.video(seed, windows))

    @rule(names=st.lists(st.sampled_from("abcdefgh"), max_size=4), seed=st.integers(0, 50))
    def add_all(self, names: list[str], seed: int) -> None:
        self.index.add_all([(name, self.video(seed + n)) for n, name in enumerate(names)])
        for n, name in enumerate(names):
            self.twin.add(name, self.video(seed + n))

    @rule(name=st.sampled_from("abcdefgh"))
    def remove(self, name: str) -> None:
        for index in (self.index, self.twin):
            if name in index:
                index.remove(name)

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = EmbeddedIndex.open(self.place.name)

    @invariant()
    def alike(self) -> None:
        assert self.index.video_ids() == self.twin.video_ids()
        assert self.index.verify() == []
        asked = queries_of(self.weights, 1)
        found, expected = self.index.search(asked), self.twin.search(asked)
        for ours, theirs in zip(found, expected, strict=True):
            assert [match.score for match in ours] == pytest.approx([match.score for match in theirs], abs=0.02)
        assert_alike(found, oracle(self.index).search(asked))

    def teardown(self) -> None:
        self.index.close()
        self.place.cleanup()


TestStates = Machine.TestCase
TestStates.settings = settings(max_examples=6, stateful_step_count=10, deadline=None)


class MachineWithSimilarities(Machine):
    """The same with a branch of every similarity."""

    weights, similarities = FORMS["all"]


TestStatesWithSimilarities = MachineWithSimilarities.TestCase
TestStatesWithSimilarities.settings = settings(max_examples=4, stateful_step_count=8, deadline=None)
