"""What features are extracted from: a dataset, or videos that nobody has described."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from midreel.datasets import Annotations, find_annotations, open_annotations, own
from midreel.errors import BadAnnotation

FEATURES = "features.h5"
MOST_SHOWN = 5  # endings of files
_WRITTEN = (".h5", ".quarantine.json")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Videos, by ids that `own.find_file` knows in `folder`, and sentences as (id, text)."""

    folder: Path
    video_ids: Sequence[str]
    queries: Sequence[tuple[str, str]] = ()
    store: Path  # where the features go, unless they are wanted elsewhere
    remarks: Sequence[str] = ()  # what lies in the folder and is not taken

    @classmethod
    def of(cls, annotations: Annotations) -> "Source":
        """A video in parts lies in the folder under several ids."""
        video_ids = [video_id for split in annotations.splits.values() for video_id in split.video_ids]
        parts = {video: [part.id for part in parts] for video, parts in annotations.parts.items()}
        return cls(
            folder=annotations.folder,
            video_ids=list(dict.fromkeys(name for video_id in video_ids for name in parts.get(video_id, [video_id]))),
            queries=[(query.id, query.text) for split in annotations.splits.values() for query in split.queries],
            store=annotations.folder / FEATURES,
        )

    @classmethod
    def find(cls, path: Path) -> "Source":
        """A dataset; a folder of videos, however deep they lie in it; a text file with the path of a video on each
        line, relative to its folder; or a single video. A dataset in a folder of the folder is meant if no video
        lies beside it.
        """
        if not path.exists():
            raise BadAnnotation(
                f"{path} does not exist, expected a dataset, a folder of videos or a list of them; check the path"
            )
        if path.is_dir():
            return cls._of_folder(path)
        names = [path.name] if path.suffix.lower() in own.VIDEO_ENDINGS else _lines(path)
        return cls(folder=path.parent, video_ids=_ids(path.parent, names), store=path.with_suffix(".h5"))

    @classmethod
    def _of_folder(cls, folder: Path) -> "Source":
        files = own.video_files(folder)
        try:
            places = find_annotations(folder)
        except BadAnnotation:
            if not files:
                raise
            places = ()
        if places and (len({place.name for place in places}) > 1 or _holds_all(places[0].folder, files)):
            return cls.of(open_annotations(folder))
        return cls(
            folder=folder,
            video_ids=_ids(folder, [path.relative_to(folder).as_posix() for path in files]),
            store=folder / FEATURES,
            remarks=[
                *(
                    f"the annotations in {place.folder} were passed over, for there are videos beside it; "
                    f"midreel extract {place.folder} takes them"
                    for place in places
                ),
                *_passed_over(folder),
            ],
        )


def _holds_all(folder: Path, files: Iterable[Path]) -> bool:
    return all(path.is_relative_to(folder) for path in files)


def _passed_over(folder: Path) -> Iterator[str]:
    """How many files are no videos by their names, in one line, except those that midreel itself has written."""
    others = [
        path
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not path.name.lower().endswith((*own.VIDEO_ENDINGS, *_WRITTEN, *own.FILES.values()))
        and path.is_file()
    ]
    if others:
        endings = sorted({path.suffix.lower() or path.name for path in others})
        shown = f"{', '.join(endings[:MOST_SHOWN])}{', …' if len(endings) > MOST_SHOWN else ''}"
        yield f"files passed over, for their names do not end as those of videos do: {len(others):,} ({shown})"


def _ids(folder: Path, names: Iterable[str]) -> list[str]:
    """The names of files without their endings; with them, where that would mean another file, or none."""
    ids = []
    for name in dict.fromkeys(names):
        bare = name.removesuffix(Path(name).suffix)
        ids.append(bare if own.find_file(folder, bare) == folder / name else name)
    return ids


def _lines(path: Path) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadAnnotation(
            f"{path} is not UTF-8 ({error}), expected the path of a video on each line; save it again"
        ) from error
    if not names:
        raise BadAnnotation(f"{path} is empty, expected the path of a video on each line; write some")
    return names
