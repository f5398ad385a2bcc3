import hashlib
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from midreel.datasets import own, playhouse
from midreel.datasets.playhouse import (
    Event,
    PlayhouseVideo,
    Pose,
    art,
    files,
    large,
    make_split,
    make_video,
    render,
    small,
    words,
)
from midreel.datasets.playhouse.words import Actor
from midreel.errors import BadAnnotation, BadSetting, UnknownName
from midreel.media.decode import duration, read_frames

VIDEOS = make_split(seed=3, split="test", num_videos=60)
ACTIONS = [*playhouse.SOLO_ACTIONS, *playhouse.PAIR_ACTIONS]
THING_OF_WORD = {word: thing for thing, names in words.THING_WORDS.items() for word in names}
COLOUR_OF_WORD = {word: colour for colour, names in words.COLOUR_WORDS.items() for word in names}


def named(text: str) -> dict[str, str | None]:
    """Return the things that a sentence names, with their colours; None for a thing without a colour."""
    spoken = words.words_of(text)
    return {
        THING_OF_WORD[word]: COLOUR_OF_WORD.get(before)
        for before, word in pairwise(["", *spoken])
        if word in THING_OF_WORD
    }


def described() -> list[tuple[str, Event]]:
    return [
        (query.text, video.events[number])
        for video in VIDEOS
        for query, number in zip(video.queries, video.event_of_query, strict=True)
    ]


def performance(action: str, side: str = "left", num_actors: int | None = None) -> Event:
    num_actors = num_actors or (2 if action in playhouse.PAIR_ACTIONS else 1)
    actors = (Actor("fish", "red"), Actor("house", "blue"))[:num_actors]
    return Event(action=action, side=side, actors=actors, backdrop="room", start=10.0, end=16.0)


def course(event: Event, actor: int = 0, count: int = 73) -> list[Pose]:
    return [event.poses(float(time))[actor] for time in np.linspace(event.start, event.end, count)]


# ---------------------------------------------------------------- descriptions


@given(seed=st.integers(0, 2**31), index=st.integers(0, 99_999), split=st.sampled_from(playhouse.SPLITS))
def test_videos_are_valid(seed: int, index: int, split: str) -> None:
    video = make_video(seed, index, split)
    assert video == make_video(seed, index, split)
    assert video.id == f"playhouse-{split}-{index:05d}"
    assert 20 <= video.duration <= 60
    assert 3 <= len(video.events) <= 6
    bounds = [0.0, *(bound for event in video.events for bound in (event.start, event.end)), video.duration]
    assert bounds == sorted(bounds)
    assert all(event.end - event.start >= 4 for event in video.events)
    assert len({event.action for event in video.events}) >= len(video.events) - 2  # left and right count as two actions
    assert all(len({actor.thing for actor in event.actors}) == len(event.actors) for event in video.events)
    assert all(event.actors[1].thing in playhouse.COVERS for event in video.events if event.action in playhouse.HIDING)
    assert set(video.backdrops) <= set(art.BACKDROPS)
    assert len(set(video.event_of_query)) >= 2
    for query, number in zip(video.queries, video.event_of_query, strict=True):
        assert query.video_id == video.id
        (moment,) = query.moments
        assert (moment.start, moment.end) == (video.events[number].start, video.events[number].end)


@given(seed=st.integers(0, 2**31), index=st.integers(0, 99_999), split=st.sampled_from(playhouse.SPLITS))
def test_repeated_events_have_a_moment_for_each_repetition(seed: int, index: int, split: str) -> None:
    video = make_video(seed, index, split, kind="repeated")
    assert video == playhouse.find_video(seed, video.id) == make_video(seed, index, split, kind="repeated")
    bounds = [0.0, *(bound for event in video.events for bound in (event.start, event.end)), video.duration]
    assert bounds == sorted(bounds)
    counts = set()
    for query, number in zip(video.queries, video.event_of_query, strict=True):
        spans = [(moment.start, moment.end) for moment in query.moments]
        occurrences = [event for event in video.events if (event.start, event.end) in spans]
        assert occurrences[0] == video.events[number]
        assert len(occurrences) == len(spans)
        kinds = {kind(event) for event in occurrences}
        assert len(kinds) == 1
        alike = [(event.start, event.end) in spans for event in video.events]
        assert not any(first and second for first, second in pairwise(alike) if len(spans) > 1)
        counts.add(len(spans))
    assert counts & {2, 3}
    assert counts <= {1, 2, 3}


def kind(event: Event) -> tuple[str, str, tuple[Actor, ...], str]:
    return event.action, event.side, event.actors, event.backdrop


def test_repeated_videos_do_not_change_the_others(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_val=2, files=(), kind="repeated")
    (video_id, _) = own.read(tmp_path)["val"].video_ids
    drawn = playhouse.draw_frames(tmp_path, video_id, 1)
    assert drawn is not None
    assert drawn[1] == make_video(3, 0, "val", kind="repeated").duration != make_video(3, 0, "val").duration


@given(seed=st.integers(0, 2**31), index=st.integers(0, 99_999), split=st.sampled_from(playhouse.SPLITS))
def test_large_videos_are_valid(seed: int, index: int, split: str) -> None:
    video = make_video(seed, index, split, kind="large")
    assert video == playhouse.find_video(seed, video.id)
    bounds = [0.0, *(bound for event in video.events for bound in (event.start, event.end)), video.duration]
    assert bounds == sorted(bounds)
    assert all((4 * bound).is_integer() for bound in bounds)
    for event in video.events:
        assert large.SHORTEST <= event.end - event.start <= video.duration
        assert event.end - event.start >= large.LEAST_SECONDS.get(event.action, 0.0)
        assert len({actor.thing for actor in event.actors}) == len(event.actors)
        assert event.action not in playhouse.HIDING or event.actors[1].thing in playhouse.COVERS
    assert not any(kind(first) == kind(second) for first, second in pairwise(video.events))
    for query, number in zip(video.queries, video.event_of_query, strict=True):
        spans = [(moment.start, moment.end) for moment in query.moments]
        alike = [event for event in video.events if kind(event) == kind(video.events[number])]
        assert [(event.start, event.end) for event in alike] == spans
        assert alike[0] == video.events[number]
    # No two queries describe the same action of the same actor, so a sentence has no other moments.
    leads = [(video.events[number].action, video.events[number].actors[0]) for number in video.event_of_query]
    assert len(set(leads)) == len(leads)


def test_large_videos_have_the_shape_of_qvhighlights() -> None:
    videos = make_split(3, "test", 150, kind="large")
    queries = [(query, video) for video in videos for query in video.queries]
    lengths = [moment.end - moment.start for query, _ in queries for moment in query.moments]
    assert 2.9 < len(queries) / len(videos) < 3.7  # QVHighlights: 3.3
    assert 1.4 < np.mean([len(query.moments) for query, _ in queries]) < 2.1  # 1.8
    assert 200 < np.median([video.duration for video in videos]) < 280  # half of 450
    assert 5 < np.median(lengths) < 10  # half of 16
    assert min(lengths) < 1
    assert max(max(event.end - event.start for event in video.events) / video.duration for video in videos) > 0.3
    # The sentences of a video are about different contexts if it has enough.
    backdrops = [len({video.events[number].backdrop for number in video.event_of_query}) for video in videos]
    assert sum(backdrops) > 0.9 * len(queries)


def test_contexts_recur_with_others_in_between() -> None:
    recurring = 0
    for video in make_split(3, "test", 30, kind="large"):
        order = [event.backdrop for event in video.events]
        runs = [first for first, second in pairwise([*order, ""]) if first != second]
        recurring += len(runs) > len(set(runs))
    assert recurring > 25


def test_an_unknown_kind_is_rejected() -> None:
    with pytest.raises(UnknownName, match="large"):
        make_video(3, 0, kind="huge")


def test_seeds_splits_and_indices_give_different_videos() -> None:
    texts = [
        tuple(query.text for query in make_video(seed, index, split).queries)
        for seed in (0, 1)
        for index in (0, 1)
        for split in playhouse.SPLITS
    ]
    assert len(set(texts)) == len(texts)


def test_a_video_does_not_depend_on_the_number_of_videos() -> None:
    assert make_split(3, "test", 2) == VIDEOS[:2]
    assert make_video(3, 59, "test") == VIDEOS[59]


def test_events_repeat_and_some_are_never_described() -> None:
    events = [event for video in VIDEOS for event in video.events]
    assert {event.action for event in events} == set(ACTIONS)
    troupe = playhouse.make_troupe(3)
    assert {event.backdrop for event in events} == set(troupe.backdrops)
    assert {actor.colour for event in events for actor in event.actors} == set(troupe.colours)
    assert {actor.thing for event in events for actor in event.actors} == {
        thing for play in troupe.plays for thing in play
    }
    spoken_of = sum(len(set(video.event_of_query)) for video in VIDEOS)
    assert 0.55 < spoken_of / len(events) < 0.8


def test_troupes() -> None:
    troupes = {playhouse.make_troupe(3, split) for split in ("train", "val", "test")}
    assert troupes == {playhouse.make_troupe(3)}
    assert playhouse.make_troupe(3) != playhouse.make_troupe(4)
    troupe = playhouse.make_troupe(3)
    sizes = (len(troupe.plays), len(set(troupe.colours)), len(set(troupe.backdrops)))
    assert sizes == (small.SIZE.plays, small.SIZE.colours, small.SIZE.backdrops)
    things = [thing for play in troupe.plays for thing in play]
    assert len(set(things)) == len(things) == small.SIZE.plays * small.SIZE.cast
    assert all(len(set(play) & set(playhouse.COVERS)) == 1 for play in troupe.plays)
    assert playhouse.make_troupe(3, "stills") == playhouse.EVERYTHING
    everything = playhouse.EVERYTHING
    assert (*everything.plays, everything.colours, everything.backdrops) == (
        *map(tuple, (art.THINGS, art.COLOURS, art.BACKDROPS)),
    )


def test_a_video_shows_one_play() -> None:
    plays = playhouse.make_troupe(3).plays
    staged = []
    for video in VIDEOS:
        things = {actor.thing for event in video.events for actor in event.actors}
        (play,) = [play for play in plays if things <= set(play)]
        staged.append(play)
        assert len(things) >= 3  # of four: a thing appears again only after the others
    assert set(staged) == set(plays)


def test_few_queries_match_several_videos() -> None:
    def key(event: Event) -> tuple[object, ...]:
        return event.action, event.side if event.action in ("enters", "leaves") else "", event.actors

    videos = make_split(0, "test", 120)
    videos_of_key: dict[tuple[object, ...], set[str]] = {}
    for video in videos:
        for event in video.events:
            videos_of_key.setdefault(key(event), set()).add(video.id)
    keys = [key(video.events[number]) for video in videos for number in video.event_of_query]
    assert sum(len(videos_of_key[one]) > 1 for one in keys) < 0.12 * len(keys)


def test_bad_settings() -> None:
    with pytest.raises(UnknownName, match=r"'tests'; did you mean 'test'\?"):
        make_video(0, 0, "tests")
    with pytest.raises(BadSetting, match="seed is -1 and index is 0"):
        make_video(-1, 0)


def test_annotations() -> None:
    split = playhouse.annotations(VIDEOS)
    assert split.video_ids == tuple(video.id for video in VIDEOS)
    assert len({query.id for query in split.queries}) == len(split.queries) == len(described())


# ---------------------------------------------------------------- sentences


def test_queries_are_true() -> None:
    for text, event in described():
        colour_of_thing = {actor.thing: actor.colour for actor in event.actors}
        for thing, colour in named(text).items():
            assert thing in colour_of_thing, text
            assert colour in (None, colour_of_thing[thing]), text
        assert event.actors[0].thing in named(text), text
        assert any(named(text).values()), text
        if event.action in playhouse.PAIR_ACTIONS:
            assert len(named(text)) == 2, text
        if event.action in ("enters", "leaves"):
            assert {"left", "right"} & set(words.words_of(text)) == {event.side}, text
        for backdrop, phrases in words.BACKDROP_WORDS.items():
            if any(phrase in text for phrase in phrases):
                assert backdrop == event.backdrop, text


def test_queries_name_the_action() -> None:
    for text, event in described():
        frames = [*words.CLAUSES[event.action], *words.SHOTS[event.action]]
        gaps = [[part.format(side=event.side).strip() for part in _split(frame)] for frame in frames]
        assert any(all(part in text for part in parts) for parts in gaps), text


def _split(frame: str) -> list[str]:
    return frame.replace("{b}", "{a}").split("{a}")


def test_wording_varies() -> None:
    texts = [text for text, _ in described()]
    assert len(set(texts)) > 0.98 * len(texts)
    assert len({text.split()[0] for text in texts}) > 12


def test_vocabulary() -> None:
    vocabulary = words.vocabulary()
    assert 200 < len(vocabulary) < 500
    assert list(vocabulary) == sorted(set(vocabulary))
    rng = np.random.default_rng(0)
    captions = [text for video in VIDEOS for text in playhouse.still_captions(video, video.duration / 2, rng)]
    spoken = {word for text in [*captions, *(text for text, _ in described())] for word in words.words_of(text)}
    assert spoken <= set(vocabulary)


def test_every_word_has_one_meaning() -> None:
    assert len(THING_OF_WORD) == sum(map(len, words.THING_WORDS.values()))
    assert len(COLOUR_OF_WORD) == sum(map(len, words.COLOUR_WORDS.values()))
    tables = (words.CLAUSES, words.SHOTS, words.BACKDROP_WORDS, words.STILL_RELATIONS, words.PLACES, words.TURNS)
    others = {word for table in tables for texts in table.values() for text in texts for word in words.words_of(text)}
    assert not others & {*THING_OF_WORD, *COLOUR_OF_WORD}
    assert words.THING_WORDS.keys() == art.THINGS.keys()
    assert words.COLOUR_WORDS.keys() == art.COLOURS.keys()
    assert words.BACKDROP_WORDS.keys() == art.BACKDROPS.keys()
    assert words.CLAUSES.keys() == words.SHOTS.keys() == set(ACTIONS)


@given(seed=st.integers(0, 2**31), share=st.floats(0, 1))
def test_still_captions_are_true(seed: int, share: float) -> None:
    video = make_video(seed, 0, "stills")
    time = share * video.duration
    backdrop, event = video.at(time)
    only_time_tells = {"enters", "leaves", "rises", "falls", "spins", "grows", "shrinks", "bounces", "blinks", "chases"}
    actors = {} if event is None else {actor.thing: actor.colour for actor in event.actors}
    captions = playhouse.still_captions(video, time, np.random.default_rng(seed))
    assert len(captions) >= 2
    for caption in captions:
        for thing, colour in named(caption).items():
            assert actors[thing] == colour, caption
        for other, phrases in words.BACKDROP_WORDS.items():
            if any(phrase in caption for phrase in phrases):
                assert other == backdrop, caption
        assert not only_time_tells & set(words.words_of(caption)), caption
    if event is not None and "on the left and" in captions[-1]:
        left, right = (actors_at(event, time)[thing] for thing in named(captions[-1]))
        assert left.x < right.x


def actors_at(event: Event, time: float) -> dict[str, Pose]:
    return {actor.thing: pose for actor, pose in zip(event.actors, event.poses(time), strict=True)}


# ---------------------------------------------------------------- motion


def test_motion_by_direction() -> None:
    for side, sign in (("left", -1), ("right", 1)):
        enters, leaves = course(performance("enters", side)), course(performance("leaves", side))
        assert sign * enters[0].x > 0.6
        assert abs(enters[-1].x) < 0.1
        assert abs(leaves[0].x) < 0.1
        assert sign * leaves[-1].x - leaves[-1].size / 2 > 0.6  # nothing of it is left on the stage
        assert all(after.x * sign <= before.x * sign + 1e-9 for before, after in pairwise(enters))
        assert enters[0].faces_left == (side == "right")
        assert leaves[-1].faces_left == (side == "left")
    rises, falls = course(performance("rises")), course(performance("falls"))
    assert all(after.y <= before.y for before, after in pairwise(rises))
    assert rises[0].y - rises[-1].y > 0.5
    assert all(after.y >= before.y for before, after in pairwise(falls))
    assert falls[-1].y - falls[0].y > 0.5


def test_motion_in_place() -> None:
    turns = [pose.angle / (2 * math.pi) for pose in course(performance("spins"))]
    assert turns[-1] - turns[0] > 1.2
    grows, shrinks = course(performance("grows")), course(performance("shrinks"))
    assert grows[-1].size > 3 * grows[0].size
    assert shrinks[0].size > 3 * shrinks[-1].size
    heights = [pose.y for pose in course(performance("bounces"))]
    peaks = [k for k in range(1, 72) if heights[k] < heights[k - 1] and heights[k] <= heights[k + 1]]
    assert len(peaks) >= 2
    assert max(heights) - min(heights) > 0.4
    shown = [pose.visible for pose in course(performance("blinks"))]
    assert sum(before != after for before, after in pairwise(shown)) >= 4
    angles = [pose.angle for pose in course(performance("sways"))]
    assert max(angles) > 0.5
    assert min(angles) < -0.5


def test_motion_of_two() -> None:
    chaser, chased = course(performance("chases")), course(performance("chases"), 1)
    assert all(a.x < b.x and not a.faces_left for a, b in zip(chaser, chased, strict=True))
    assert chased[-1].x - chased[0].x > 1

    def distances(action: str) -> list[float]:
        pairs = zip(course(performance(action)), course(performance(action), 1), strict=True)
        return [math.hypot(a.x - b.x, a.y - b.y) for a, b in pairs]

    hides, comes_out = distances("hides_behind"), distances("comes_out_from_behind")
    assert hides[0] > 0.4
    assert hides[-1] < 0.1
    assert comes_out == pytest.approx(hides[::-1])
    hidden = performance("hides_behind").poses(16)
    assert hidden[0].depth < hidden[1].depth
    circles = course(performance("circles"))
    assert {(pose.x > 0.1, pose.y > 0.1) for pose in circles} == {(a, b) for a in (True, False) for b in (True, False)}
    assert min(distances("circles")) > 0.3
    meets = distances("meet_and_part")
    assert min(meets) < 0.35
    assert min(meets[0], meets[-1]) > 0.9
    jumps = course(performance("jumps_over"))
    assert jumps[0].x < -0.3
    assert jumps[-1].x > 0.3
    over = min(jumps, key=lambda pose: abs(pose.x))
    assert over.y < performance("jumps_over").poses(13)[1].y - 0.4


@pytest.mark.parametrize("side", ["left", "right"])
def test_static_relations(side: str) -> None:
    for time in np.linspace(10, 16, 13).tolist():
        above, below = performance("above", side).poses(time), performance("below", side).poses(time)
        assert above[0].y < above[1].y - 0.3
        assert below[0].y > below[1].y + 0.3
        beside = performance("beside", side).poses(time)
        assert abs(beside[0].x - beside[1].x) > 0.4
        assert abs(beside[0].y - beside[1].y) < 0.1
        near, far = performance("in_front_of", side).poses(time)
        assert near.depth > far.depth
        assert math.hypot(near.x - far.x, near.y - far.y) < (near.size + far.size) / 2


@pytest.mark.parametrize("action", ACTIONS)
def test_actors_are_visible(action: str) -> None:
    event = performance(action, num_actors=2)
    middle = [pose for time in (12.0, 13.0, 14.0) for pose in event.poses(time)]
    assert all(0.2 < pose.size < 0.65 for pose in middle)
    assert all(abs(pose.y) + pose.size / 2 < 0.56 for pose in middle)


@pytest.mark.parametrize("cover", playhouse.COVERS)
def test_a_hidden_actor_is_invisible(cover: str) -> None:
    for thing in ("cat", "rocket", "umbrella"):
        hides = Event(
            action="hides_behind",
            side="left",
            actors=(Actor(thing, "red"), Actor(cover, "blue")),
            backdrop="room",
            start=0.0,
            end=6.0,
        )
        alone = art.draw("room", [_placed(hides, 1)], 192, 144)
        assert np.abs(render(_video(hides), 5.9).astype(int) - alone).max() < 8
        assert np.abs(render(_video(hides), 0.5).astype(int) - alone).max() > 50


def _placed(event: Event, actor: int) -> art.Placed:
    pose = event.poses(5.9)[actor]
    who = event.actors[actor]
    return art.Placed(thing=who.thing, colour=who.colour, x=pose.x, y=pose.y, size=pose.size, angle=pose.angle)


def _video(event: Event) -> PlayhouseVideo:
    return PlayhouseVideo(id="one", duration=event.end, events=(event,), queries=(), event_of_query=())


# ---------------------------------------------------------------- frames


def test_a_frame_depends_only_on_the_description_and_the_time() -> None:
    video = VIDEOS[0]
    times = [k * 1.7 for k in range(12)]
    forwards = [render(video, time) for time in times]
    render(VIDEOS[1], 5.0, (64, 64))
    backwards = [render(make_video(3, 0, "test"), time) for time in reversed(times)][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    forwards[0][:] = 0  # a caller may draw on its frame
    np.testing.assert_array_equal(render(video, times[0]), backwards[0])
    assert backwards[0].shape == (144, 192, 3)
    assert backwards[0].dtype == np.uint8


def test_a_square_frame_is_the_middle_of_a_wide_one() -> None:
    video, time = VIDEOS[0], VIDEOS[0].events[0].start + 2
    wide, square = render(video, time, (192, 144)), render(video, time, (144, 144))
    assert np.abs(wide[:, 24:-24].astype(int) - square).mean() < 0.5


@pytest.mark.parametrize("size", [(64, 64), (96, 72), (256, 192)])
def test_all_sizes_show_the_same_picture(size: tuple[int, int]) -> None:
    video, time = VIDEOS[2], VIDEOS[2].events[0].start + 2
    large = Image.fromarray(render(video, time, (size[0] * 3, size[1] * 3))).resize(size, Image.Resampling.BOX)
    assert np.abs(np.asarray(large).astype(int) - render(video, time, size)).mean() < 6


@pytest.mark.parametrize("thing", art.THINGS)
def test_a_thing_shows_its_colour_on_every_backdrop(thing: str) -> None:
    for colour in ("red", "white", "black"):
        for backdrop in ("night", "snow"):
            placed = art.Placed(thing=thing, colour=colour, x=0.0, y=0.0, size=0.5)
            frame = art.draw(backdrop, [placed], 96, 96).astype(int)
            changed = np.abs(frame - art.draw(backdrop, [], 96, 96)).max(-1) > 16
            coloured = (np.abs(frame - art.COLOURS[colour]).max(-1) < 24) & (changed | (colour == "white"))
            assert changed.sum() > 400
            assert coloured.sum() > 130


def test_a_turned_or_mirrored_thing() -> None:
    def draw(angle: float, flipped: bool) -> NDArray[np.int64]:
        placed = art.Placed(thing="fish", colour="red", x=0.0, y=0.0, size=0.8, angle=angle, flipped=flipped)
        return art.draw("room", [placed], 96, 96).astype(int) - art.draw("room", [], 96, 96)

    backdrop = np.abs(draw(0.0, False)).max(-1) > 60
    assert np.mean((np.abs(draw(0.0, True)).max(-1) > 60) != backdrop[:, ::-1]) < 0.02
    assert np.mean((np.abs(draw(math.pi / 2, False)).max(-1) > 60) != np.rot90(backdrop, -1)) < 0.02


def test_stills() -> None:
    taken = list(playhouse.stills(seed=1, num_videos=6, per_video=3, size=(64, 64)))
    assert len(taken) == 18
    assert all(still.image.shape == (64, 64, 3) and len(still.captions) >= 2 for still in taken)
    again = list(playhouse.stills(seed=1, num_videos=2, per_video=3, size=(64, 64)))
    for before, after in zip(taken, again, strict=False):
        np.testing.assert_array_equal(before.image, after.image)
        assert before.captions == after.captions


# ---------------------------------------------------------------- files


def test_write_dataset(tmp_path: Path) -> None:
    splits = playhouse.write_dataset(
        tmp_path, seed=3, num_train=3, num_val=2, num_test=1, files=("test",), size=(96, 72)
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"annotations.jsonl", "playhouse.json", "playhouse-test-00000.mp4"}
    assert own.read(tmp_path) == splits
    assert [len(splits[name].video_ids) for name in ("train", "val", "test")] == [3, 2, 1]
    lines = [json.loads(line) for line in (tmp_path / "annotations.jsonl").read_text().splitlines()]
    queries = [(name, query) for name, split in splits.items() for query in split.queries]
    assert len(lines) == len(queries)
    for line, (name, query) in zip(lines, queries, strict=True):
        (moment,) = query.moments
        assert line == {
            "id": query.id,
            "video": query.video_id,
            "query": query.text,
            "start": moment.start,
            "end": moment.end,
            "split": name,
        }
    ids = [video_id for split in splits.values() for video_id in split.video_ids]
    assert len(set(ids)) == 6


SMALL = {"size": (32, 24), "rate": 1}


def test_existing_files_are_kept_and_missing_files_written(tmp_path: Path) -> None:
    reported: list[str] = []
    playhouse.write_dataset(tmp_path, seed=3, num_test=2, **SMALL, progress=reported.append)
    first, second = (tmp_path / f"playhouse-test-0000{number}.mp4" for number in (0, 1))
    whole = second.read_bytes()
    first.write_bytes(b"kept")
    second.unlink()
    playhouse.write_dataset(tmp_path, seed=3, num_test=3, **SMALL, progress=reported.append)  # and a dataset may grow
    assert first.read_bytes() == b"kept"
    assert second.read_bytes() == whole
    assert [name[-5:] for name in reported] == ["00000", "00001", "00000", "00001", "00002"]
    assert len(own.read(tmp_path)["test"].video_ids) == 3


def test_annotations_are_never_shortened(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_test=2, **SMALL)
    with pytest.raises(BadSetting, match="would lose"):
        playhouse.write_dataset(tmp_path, seed=3, num_test=1, **SMALL)
    path = tmp_path / "annotations.jsonl"
    path.write_text(path.read_text() + '{"video": "playhouse-test-00000", "query": "my own words", "split": "test"}\n')
    mine = path.read_text()
    with pytest.raises(BadSetting, match="lose 1 sentences, such as 'my own words'"):
        playhouse.write_dataset(tmp_path, seed=3, num_test=2, **SMALL)
    assert path.read_text() == mine


def test_versions_of_the_generator_are_not_mixed(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_test=2, files=())
    path = tmp_path / "playhouse.json"
    path.write_text(json.dumps({"seed": 3, "size": [192, 144], "rate": 12}))
    with pytest.raises(BadSetting, match=f"version 1, not {playhouse.VERSION}"):
        playhouse.write_dataset(tmp_path, seed=3, num_test=2, files=())
    with pytest.raises(BadSetting, match=f"version 1 of the playhouse, expected {playhouse.VERSION}"):
        playhouse.draw_frames(tmp_path, "playhouse-test-00000", 1.0)
    for text, reason in (("{", "not JSON"), ("{}", "seed, size, rate and version")):
        path.write_text(text)
        with pytest.raises(BadSetting, match=reason):
            playhouse.draw_frames(tmp_path, "playhouse-test-00000", 1.0)


def test_the_version_identifies_the_videos() -> None:
    """If this fails, the same seed gives other videos than before. Raise playhouse.VERSION and update the digest."""
    videos = [make_split(0, split, 3) for split in playhouse.SPLITS]
    assert (playhouse.VERSION, hashlib.sha256(repr(videos).encode()).hexdigest()[:16]) == (3, "c54eb8a9cfe37cbf")


def test_many_files_are_written_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses a pool of threads, because starting processes is slow."""
    started = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers: int, *_: object) -> None:
            started.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(files, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    reported: list[str] = []
    playhouse.write_dataset(tmp_path, seed=3, num_test=16, **SMALL, progress=reported.append)
    assert sorted(reported) == sorted(path.stem for path in tmp_path.glob("*.mp4"))
    playhouse.write_dataset(tmp_path, seed=3, num_test=16, **SMALL)
    assert started == [2]


def test_an_interrupted_dataset_has_no_annotations(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(video_id: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        playhouse.write_dataset(tmp_path, seed=3, num_test=2, **SMALL, progress=kill)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["playhouse-test-00000.mp4", "playhouse.json"]
    with pytest.raises(BadAnnotation, match=r"no annotations.jsonl"):
        own.read(tmp_path)
    playhouse.write_dataset(tmp_path, seed=3, num_test=2, **SMALL)
    assert len(own.read(tmp_path)["test"].video_ids) == 2


def test_other_videos_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.mp4").write_bytes(b"mine")
    with pytest.raises(BadSetting, match="other videos"):
        playhouse.write_dataset(tmp_path, seed=3, num_train=1, files=())
    with pytest.raises(BadSetting, match=r"holiday.mp4 is a file"):
        playhouse.write_dataset(tmp_path / "holiday.mp4", seed=3, num_train=1, files=())
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.mp4"]


def test_seeds_are_not_mixed(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_train=1, files=())
    before = own.read(tmp_path)
    with pytest.raises(BadSetting, match="seed 3, not 4"):
        playhouse.write_dataset(tmp_path, seed=4, num_train=1, files=())
    assert own.read(tmp_path) == before


def test_a_video_is_drawn_without_its_file(tmp_path: Path) -> None:
    assert playhouse.draw_frames(tmp_path, VIDEOS[0].id, 1) is None
    playhouse.write_dataset(tmp_path, seed=3, num_train=1, files=(), size=(96, 72))
    drawn = playhouse.draw_frames(tmp_path, "playhouse-train-00000", 1)
    assert drawn is not None
    frames, duration = drawn
    assert duration == make_video(3, 0).duration
    assert {image.shape for _, image in frames} == {(72, 96, 3)}
    assert playhouse.draw_frames(tmp_path, "beach", 1) is None


def test_other_annotations_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "annotations.jsonl").write_text('{"video": "beach", "query": "a dog"}')
    with pytest.raises(BadSetting, match="other annotations"):
        playhouse.write_dataset(tmp_path, seed=3, num_train=1, files=())
    assert [path.name for path in tmp_path.iterdir()] == ["annotations.jsonl"]


def test_invalid_requests_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(UnknownName, match="'all'; choose one of: train, val, test"):
        playhouse.write_dataset(folder, seed=3, num_train=1, files=("all",))
    with pytest.raises(BadSetting, match="0 videos"):
        playhouse.write_dataset(folder, seed=3)
    with pytest.raises(BadSetting, match="seed is -1"):
        playhouse.write_dataset(folder, seed=-1, num_train=1)
    assert not folder.exists()


def test_a_video_is_found_by_its_id() -> None:
    assert all(playhouse.find_video(3, video.id) == video for video in VIDEOS[:3])
    assert playhouse.find_video(0, "playhouse-train-123456") == make_video(0, 123456)
    for name in (
        "beach",
        "playhouse-test-1",
        "playhouse-tests-00001",
        "playhouse-test-000001",
        "playhouse-test-00001 ",
    ):
        with pytest.raises(UnknownName, match=f"'{name}'.* playhouse-train-00000"):
            playhouse.find_video(0, name)


def test_a_file_contains_the_rendered_frames(tmp_path: Path) -> None:
    video = min(VIDEOS, key=lambda video: video.duration)
    path, again = tmp_path / "video.mp4", tmp_path / "again.mp4"
    playhouse.write_file(video, path)
    playhouse.write_file(video, again)
    assert path.read_bytes() == again.read_bytes()
    assert duration(path) == pytest.approx(video.duration)
    frames = list(read_frames(path, 2))
    assert [time for time, _ in frames] == pytest.approx(playhouse.frame_times(video, 2))
    for (time, image), (asked, drawn) in zip(frames, playhouse.frames(video, 2), strict=True):
        assert time == pytest.approx(asked)
        assert np.abs(image.astype(int) - drawn).mean() < 4


def test_a_contact_sheet(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    playhouse.contact_sheet(VIDEOS[:2], path, every=4)
    sheet = np.asarray(Image.open(path))
    assert sheet.shape[1] > 1000
    assert sheet.shape[0] > 300
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 500
    frame = render(VIDEOS[0], 0.0, (126, 96))
    assert (sheet[34 : 34 + 96, 12 : 12 + 126] == frame).all()
