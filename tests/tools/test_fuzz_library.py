from pathlib import Path

import pytest

from midreel.errors import BadLibrary
from tests.similar import give_similarities
from tools import fuzz_library
from tools.fuzz_library import Damage, Outcome, World

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_a_few_rounds_without_findings() -> None:
    report = fuzz_library.fuzz(times=6, seed=1)
    assert report.findings == []
    assert report.rounds == 6
    assert report.outcomes["answer"] > 6


@pytest.mark.slow
def test_each_file_is_damaged_twice() -> None:
    report = fuzz_library.fuzz(times=60, seed=2)
    assert report.findings == []
    assert report.outcomes["error"] > 6


@pytest.mark.slow
def test_a_library_with_every_similarity_has_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    give_similarities(monkeypatch)
    report = fuzz_library.fuzz(times=30, seed=3)
    assert report.findings == []
    assert report.outcomes["answer"] > 30


def raise_key_error(library: Path, videos: Path) -> None:
    raise KeyError(str(library))


def exhaust_memory(library: Path, videos: Path) -> None:
    bytearray(2 * fuzz_library.MEMORY)


def advise_deletion(library: Path, videos: Path) -> None:
    raise BadLibrary("damaged; delete it")


def delete_the_index(library: Path, videos: Path) -> None:
    for path in library.glob("generations/*/index/*"):
        path.unlink()


@pytest.mark.parametrize(
    ("operations", "name", "work", "word"),
    [
        ("READERS", "info", raise_key_error, "KeyError"),
        ("READERS", "info", exhaust_memory, "MemoryError"),
        ("READERS", "info", advise_deletion, "delete"),
        ("WRITERS", "retry", delete_the_index, "search fails"),
    ],
)
def test_failing_operation_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, operations: str, name: str, work: object, word: str
) -> None:
    monkeypatch.setitem(getattr(fuzz_library, operations), name, work)
    monkeypatch.setattr(fuzz_library, "KINDS", {"nothing": (lambda world, file: True, lambda path, chance: None)})
    findings = fuzz_library.fuzz(times=1).findings
    assert findings
    assert any(name in str(finding) and word in str(finding) for finding in findings)


def test_endless_child_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(library: Path, videos: Path) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz_library, "SECONDS", 0.5)
    monkeypatch.setitem(fuzz_library.READERS, "info", hang)
    (finding,) = fuzz_library.fuzz(times=1).findings
    assert "no end" in finding.problem


A_WORLD = World(templates={}, other=Path(), videos=Path("/videos"), expected={"/videos/a": "0.5", "/videos/b": "0.1"})
DAMAGE = Damage(template="closed", file="library.json", kind="deletion", mounted=True, seed="")


@pytest.mark.parametrize(
    ("first", "whole", "after", "notes", "words"),
    [
        ({"/videos/a": "0.5"}, {"/videos/a": ""}, A_WORLD.expected, ["holiday", "/videos"], []),
        ({"/videos/a": "0.6"}, {}, A_WORLD.expected, ["holiday", "/videos"], ["wrong"]),
        ({}, {"/videos/a": ""}, {"/videos/b": "0.1"}, ["holiday", "/videos"], ["lost", "repair"]),
        ({}, {}, {"/videos/b": "0.1"}, ["holiday", "/videos"], ["repair"]),
        ({}, {}, A_WORLD.expected, ["/videos"], ["tag"]),
        ({}, {}, None, ["holiday", "/videos"], ["search fails"]),
        (None, {}, None, ["holiday", "/videos"], []),
    ],
)
def test_broken_promises(
    first: dict[str, str] | None,
    whole: dict[str, str],
    after: dict[str, str] | None,
    notes: list[str],
    words: list[str],
) -> None:
    outcomes = [
        Outcome(operation="search", kind="error" if first is None else "answer", found=first),
        Outcome(operation="look", kind="answer", found=whole),
        Outcome(operation="retry", kind="answer", notes=notes),
        Outcome(operation="search after retry", kind="error" if after is None else "answer", found=after),
    ]
    found = list(fuzz_library.problems(A_WORLD, DAMAGE, outcomes))
    assert len(found) == len(words)
    for problem, word in zip(found, words, strict=True):
        assert word in problem
