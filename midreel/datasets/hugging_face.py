"""Import annotations from a dataset of the package `datasets` (Hugging Face), on this disk or on the hub.

A row describes a video by one sentence, or by a list of sentences. Times are a start and an end, or a list of pairs:
the moments of one sentence, or one moment for each sentence of the list.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midreel.datasets import own
from midreel.errors import BadAnnotation, BadPackage, UnknownName
from midreel.types import Moment, Query, Split

# The fields of an annotation, with the names that published datasets give to their columns.
COLUMNS: dict[str, tuple[str, ...]] = {
    "video": ("video", "video_id", "vid", "video_name", "video_path", "file_name"),
    "query": ("query", "sentence", "caption", "captions", "en_captions", "text", "description"),
    "start": ("start", "start_time", "begin"),
    "end": ("end", "end_time", "stop"),
    "moments": ("moments", "relevant_windows", "timestamps", "en_timestamps"),
    "id": ("id", "qid", "query_id"),
}
_REQUIRED = ("video", "query")
_SPLITS = {"validation": "val", "valid": "val", "dev": "val", "testing": "test", "training": "train"}


def import_annotations(source: str, folder: Path, columns: Mapping[str, str] | None = None) -> dict[str, Split]:
    """Write annotations.jsonl from a dataset, and return its splits.

    Args:
        source: A folder that `save_to_disk` wrote, or a hub id, which is downloaded.
        folder: The folder of videos. It must have no annotations yet.
        columns: The column of each field, such as {"query": "caption"}. Default: the names in COLUMNS.

    Raises:
        BadPackage: `datasets` is not installed.
        BadAnnotation: The dataset cannot be read, or a row is wrong. Or the folder has annotations.
        UnknownName: A field or a column does not exist.
    """
    given = dict(columns or {})
    for name in given:
        if name not in COLUMNS:
            raise UnknownName.among("field", name, COLUMNS)
    if existing := own.annotation_files(folder):
        raise BadAnnotation(f"{existing[0]} exists. Choose another folder, or remove the file.")
    splits: dict[str, Split] = {}
    for name, table in _loaded(source).items():
        target = _SPLITS.get(name, name)
        if target not in own.SPLITS:
            raise BadAnnotation(f"{source} has the split {name!r}, expected {', '.join(own.SPLITS)} or validation.")
        queries = tuple(_queries(table, _chosen(table.column_names, given, source), source, name))
        splits[target] = Split(video_ids=tuple(dict.fromkeys(query.video_id for query in queries)), queries=queries)
    folder.mkdir(parents=True, exist_ok=True)
    own.write(folder, splits)
    return splits


def _loaded(source: str) -> dict[str, Any]:
    """Return the tables of a dataset, by split."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise BadPackage(
            "datasets is not installed, expected for the import. Install it: pip install 'midreel[datasets]'"
        ) from error
    try:
        found = datasets.load_from_disk(source) if Path(source).exists() else datasets.load_dataset(source)
    except Exception as error:  # errors of the hub, of its HTTP library, of files and of formats
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadAnnotation(
            f"{source} cannot be read ({reason}), expected a folder of save_to_disk or a dataset of the hub."
        ) from error
    return dict(found) if isinstance(found, dict) else {str(found.split or "train"): found}


def _chosen(names: Sequence[str], given: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the column of each field that the table has."""
    chosen = {}
    for field, usual in COLUMNS.items():
        if field in given and given[field] not in names:
            raise UnknownName.among("column", given[field], names)
        column = given.get(field) or next((name for name in usual if name in names), None)
        if column is not None:
            chosen[field] = column
    for field in _REQUIRED:
        if field not in chosen:
            raise BadAnnotation(
                f"{source} has the columns {', '.join(names)}, expected one for {field}. Name it: --column {field}=NAME"
            )
    if "moments" in chosen and "moments" not in given and {"start", "end"} <= set(chosen):
        del chosen["moments"]
    return chosen


def _queries(table: Any, chosen: Mapping[str, str], source: str, split: str) -> Iterator[Query]:
    import datasets

    kept = table.select_columns(list(dict.fromkeys(chosen.values())))
    if isinstance(kept.features[chosen["video"]], getattr(datasets, "Video", ())):
        kept = kept.cast_column(chosen["video"], datasets.Video(decode=False))  # the path, not the frames
    for number, row in enumerate(kept):
        where = f"{source}, {split}, row {number}"
        values = {field: row[column] for field, column in chosen.items()}
        name = values.get("id")
        base = f"{split}-{number}" if name is None else str(name)
        sentences = values["query"] if isinstance(values["query"], list) else [values["query"]]
        for place, (text, moments) in enumerate(zip(sentences, _moments(values, len(sentences), where), strict=True)):
            if not isinstance(text, str) or not text.strip():
                raise BadAnnotation(f"{where} has the sentence {text!r:.80}, expected text.")
            query_id = base if len(sentences) == 1 else f"{base}-{place}"
            yield Query(id=query_id, text=text.strip(), video_id=_video(values["video"], where), moments=moments)


def _video(value: Any, where: str) -> str:
    """Return the name of a video: a text, or the path of a video column."""
    if isinstance(value, Mapping) and value.get("path"):
        value = Path(value["path"]).name
    if not isinstance(value, str | int) or not str(value):
        raise BadAnnotation(f"{where} has the video {value!r:.80}, expected a file name or an id.")
    return str(value)


def _moments(values: Mapping[str, Any], number: int, where: str) -> list[tuple[Moment, ...]]:
    """Return the moments of each sentence of a row."""
    start, end, pairs = (values.get(name) for name in ("start", "end", "moments"))
    if pairs is not None:
        if number > 1 and len(pairs) != number:
            raise BadAnnotation(f"{where} has {number} sentences and {len(pairs)} moments, expected one for each.")
        return [(each,) for each in _pairs(pairs, where)] if number > 1 else [tuple(_pairs(pairs, where))]
    if start is not None and end is not None:
        return [tuple(_pairs([(start, end)], where))] * number
    return [()] * number


def _pairs(pairs: Iterable[Any], where: str) -> Iterator[Moment]:
    for pair in pairs:
        try:
            start, end = pair
            yield Moment(start=float(start), end=float(end))
        except (TypeError, ValueError) as error:
            raise BadAnnotation(f"{where} has the moment {pair!r:.80}, expected 0 <= start <= end.") from error
