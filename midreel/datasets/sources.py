"""Sources of features: a dataset, a folder of videos, a list of videos, or a single video."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midreel.datasets import Annotations, find_annotations, open_annotations, own, parsing
from midreel.errors import BadAnnotation
from midreel.features.shards import Shard

FEATURES = "features.h5"
MAX_ENDINGS = 5  # shown in a remark
_OUTPUT_ENDINGS = (".h5", ".quarantine.json")  # files that `midreel extract` writes


@dataclass(frozen=True, kw_only=True)
class Source:
    """Videos and sentences to extract features from.

    Attributes:
        folder: The folder of the videos.
        video_ids: The ids of the videos. `own.find_file` returns the file of each.
        queries: The id and text of each sentence.
        store: The default file for the features.
        remarks: What the folder contains and the source does not.
    """

    folder: Path
    video_ids: Sequence[str]
    queries: Sequence[tuple[str, str]] = ()
    store: Path
    remarks: Sequence[str] = ()

    @classmethod
    def of(cls, annotations: Annotations) -> "Source":
        """Return all videos and queries of a dataset. A video in parts is replaced by its parts."""
        splits = annotations.splits.values()
        files = {video_id: [part.id for part in parts] for video_id, parts in annotations.parts.items()}
        return cls(
            folder=annotations.folder,
            video_ids=list(
                dict.fromkeys(
                    file for split in splits for video_id in split.video_ids for file in files.get(video_id, [video_id])
                )
            ),
            queries=[(query.id, query.text) for split in splits for query in split.queries],
            store=annotations.folder / FEATURES,
        )

    def shard(self, shard: Shard) -> "Source":
        """Return the videos and queries of a shard, with a store of its own.

        The content of a file determines its shard. A video without a file has the shard of its id.
        """
        files = {video_id: own.find_file(self.folder, video_id) for video_id in self.video_ids}
        return replace(
            self,
            video_ids=[
                video_id
                for video_id, file in files.items()
                if (shard.has_text(video_id) if file is None else shard.has_file(file))
            ],
            queries=[(query_id, text) for query_id, text in self.queries if shard.has_text(query_id)],
            store=shard.part_of(self.store),
        )

    @classmethod
    def find(cls, path: Path) -> "Source":
        """Return the source at a path.

        Args:
            path: A dataset, a folder of videos, a video, or a text file with one video path per line. Subfolders are
                searched too. Paths in a text file are relative to the file. A folder above a single dataset means the
                dataset, unless there are videos outside the dataset.

        Raises:
            BadAnnotation: There is nothing to extract features from.
        """
        if not path.exists():
            raise BadAnnotation(
                f"{path} does not exist, expected a dataset, a folder of videos or a list of videos. Check the path."
            )
        if path.is_dir():
            return cls._in_folder(path)
        names = [path.name] if path.suffix.lower() in own.VIDEO_ENDINGS else _listed_videos(path)
        return cls(folder=path.parent, video_ids=_ids(path.parent, names), store=path.with_suffix(".h5"))

    @classmethod
    def _in_folder(cls, folder: Path) -> "Source":
        files = own.video_files(folder)
        try:
            places = find_annotations(folder)
        except BadAnnotation:
            if not files:
                raise
            places = ()
        if places:
            has_several = len({place.name for place in places}) > 1
            # If there are several datasets, open_annotations raises an error that lists them.
            if has_several or all(file.is_relative_to(places[0].folder) for file in files):
                return cls.of(open_annotations(folder))
        skipped_annotations = [
            f"skipped the annotations in {place.folder}, because there are videos outside that folder. Use them: "
            f"midreel extract {place.folder}"
            for place in places
        ]
        return cls(
            folder=folder,
            video_ids=_ids(folder, [path.relative_to(folder).as_posix() for path in files]),
            store=folder / FEATURES,
            remarks=[*skipped_annotations, *_skipped_files(folder)],
        )


def _skipped_files(folder: Path) -> Iterator[str]:
    """Yield a remark on the files that are neither videos nor written by midreel, if there are any."""
    skipped = [
        path
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not path.name.lower().endswith((*own.VIDEO_ENDINGS, *_OUTPUT_ENDINGS, *own.FILES.values()))
        and path.is_file()
    ]
    if skipped:
        endings = sorted({path.suffix.lower() or path.name for path in skipped})
        more = ", …" if len(endings) > MAX_ENDINGS else ""
        yield f"non-video files skipped: {len(skipped):,} ({', '.join(endings[:MAX_ENDINGS])}{more})"


def _ids(folder: Path, names: Iterable[str]) -> list[str]:
    """Return file names without their endings. A name keeps its ending where it would be ambiguous without it."""
    ids = []
    for name in dict.fromkeys(names):
        bare = name.removesuffix(Path(name).suffix)
        ids.append(bare if own.find_file(folder, bare) == folder / name else name)
    return ids


def _listed_videos(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    names = [line.strip() for line in parsing.read_text(path).splitlines() if line.strip()]
    if not names:
        raise BadAnnotation(f"{path} is empty, expected the path of a video on each line. Add some.")
    return names
