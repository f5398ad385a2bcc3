"""The records of both databases must be the same, and so must the answers to every query."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from midreel.errors import MissingLibrary
from midreel.library.catalogue import Catalogue
from midreel.library.filters import Filter
from midreel.library.records import Records, Video
from midreel.library.scan import FoundFile
from midreel.library.storage import at
from tests.library.small import opened

ODD = Path(os.fsdecode(b"/films/\xff odd %s ?.mp4"))


def file(path: str | Path, *, size: int = 5, modified: int = 1_700_000_000_123_456_789) -> FoundFile:
    return FoundFile(path=Path(path), size=size, modified=modified)


def fill(records: Records) -> None:
    records.remember_places([Path("/films"), Path("/films/b"), Path("/films")])
    records.forget_places([Path("/films/b")])
    records.add(Video(id="b", duration=2.5, num_frames=5, date=3.0), [file("/films/b.mp4"), file(ODD)], ["sea", "é"])
    records.add(Video(id="a", duration=61.0, num_frames=9), [file("/films/a.mp4", modified=5)], damage="the end \udcff")
    records.add(Video(id="a", duration=60.0, num_frames=8), [], ["sea"], damage="the middle")
    records.place(file("/more/a.mp4", modified=-7), "a", ["new"])
    records.add(Video(id="lost", duration=1.0, num_frames=2, date=9.5), [])
    records.add(Video(id="gone", duration=1.0, num_frames=2), [file("/films/gone.mp4")], ["sea"])
    records.forget_videos(["gone", "unknown"])
    records.add_unreadable(file("/films/bad.mp4"), "it is \udcff empty")
    records.add_unreadable(file("/films/worse.mp4"), "noise")
    records.forget_files([Path("/films/worse.mp4"), Path("/nowhere")])
    records.tag(["b", "lost"], ["late"])


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Records]:
    with closing(Catalogue(tmp_path, mode="create")) as catalogue:
        fill(catalogue)
        yield catalogue


@pytest.fixture
def postgres(url: str) -> Iterator[Records]:
    with opened(url):
        pass
    with closing(at(url)) as storage, closing(storage.open_catalogue(write=True)) as catalogue:
        fill(catalogue)
        yield catalogue


FILTERS = [
    Filter(),
    Filter(tags=("sea",)),
    Filter(tags=("sea", "é")),
    Filter(tags=("\0",)),
    Filter(folders=(Path("/films"),)),
    Filter(folders=(Path("/fil"),)),
    Filter(folders=(Path("/films/a.mp4"), Path("/more"))),
    Filter(after=1_700_000_000.0),
    Filter(before=0.0),
    Filter(longer=60.0),
    Filter(shorter=2.5),
    Filter(videos=("a", "lost", "x")),
    Filter(videos=()),
]


def answers(records: Records) -> dict[str, object]:
    ids = ("a", "b", "lost", "gone", "\0")
    return {
        "len": len(records),
        "ids": records.video_ids(),
        "videos": list(records.videos()),
        "each": [records.video(each) for each in ids],
        "files": records.files(),
        "paths": {(each, number): records.paths(each, wanted) for each in ids for number, wanted in enumerate(FILTERS)},
        "with_paths": [records.with_paths(ids[:4], wanted) for wanted in FILTERS],
        "files_of": [records.files_of(each) for each in ids],
        "at": [records.video_at(path) for path in (ODD, Path("/films/bad.mp4"), Path("/nowhere"))],
        "quarantine": records.quarantine(),
        "damaged": records.damaged(),
        "damage": [records.damage_of(each) for each in ids],
        "places": records.places(),
        "tags": records.tags(),
        "tags_of": [records.tags_of(each) for each in ids],
        "seconds": records.seconds(),
        "matching": [records.matching(wanted) for wanted in FILTERS],
        "orphans": records.orphans(),
    }


def test_both_databases_give_the_same_answers(sqlite: Records, postgres: Records) -> None:
    expected, found = answers(sqlite), answers(postgres)
    for name, answer in expected.items():
        assert found[name] == answer, name
    assert expected["matching"][1] == {"a", "b"}  # type: ignore[index]


def test_the_version_changes_with_every_write_of_another_process(postgres: Records, url: str) -> None:
    before = postgres.version()
    assert postgres.version() == before
    with closing(at(url)) as storage:
        storage.open_catalogue().tag(["a"], ["other"])
    assert postgres.version() != before


def test_a_deleted_library_is_missing(postgres: Records, postgres_url: str, schema_name: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema_name} CASCADE".encode())
    with pytest.raises(MissingLibrary):
        postgres.version()
