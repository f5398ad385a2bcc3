import os
import random
import signal
from pathlib import Path
from threading import Event

import pytest

from tools.fuzz_videos import KINDS, MUTATIONS, Outcome, fuzz, in_child, write_film


@pytest.mark.slow
def test_a_few_mutants_without_failures(tmp_path: Path) -> None:
    report = fuzz(tmp_path, times=16, seed=0)
    assert report.failures == []
    assert set(report.outcomes) == {"whole", "damaged", "refused"}
    assert report.outcomes.total() == 16


def test_mutations_are_reproducible(tmp_path: Path) -> None:
    kind = next(kind for kind in KINDS if kind.suffix == ".webm")
    films = [write_film(tmp_path / f"{name}.webm", kind).read_bytes() for name in ("first", "second")]
    for mutate in MUTATIONS:
        first, second = (mutate(bytearray(film), random.Random(3)) for film in films)
        assert films[0] != first == second


def test_number_of_containers_and_mutations() -> None:
    assert len({kind.suffix for kind in KINDS}) >= 10
    assert len({mutate.__name__ for mutate in MUTATIONS}) == len(MUTATIONS)


def fail() -> Outcome:
    raise AttributeError("codec_context")


def crash() -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(kind="alive")


def hang() -> Outcome:
    Event().wait()
    return Outcome(kind="late")


def take_memory() -> Outcome:
    return Outcome(kind=str(len(bytes(2**30))))


@pytest.mark.parametrize(
    ("work", "kind"),
    [(fail, "AttributeError"), (crash, "crash"), (hang, "timeout"), (take_memory, "too much memory")],
)
def test_failures_of_a_child(work: object, kind: str) -> None:
    outcome, memory = in_child(work, seconds=1.0, memory=2**27)  # type: ignore[arg-type]
    assert (outcome.kind, outcome.is_failure, memory > 0) == (kind, True, True)


def test_outcome_of_a_child() -> None:
    assert in_child(lambda: Outcome(kind="whole", details="x" * 10**6), seconds=10.0, memory=2**27)[0] == Outcome(
        kind="whole", details="x" * 10**6
    )
