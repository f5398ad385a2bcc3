"""Find the datasets in a folder, and recognise their layout by the names of their files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from midreel.datasets import activitynet, charades, own, qvhighlights, release, tvr
from midreel.datasets.annotations import Annotations, Layout
from midreel.errors import BadAnnotation

ORIGINALS = {module.NAME: module for module in (activitynet, charades, qvhighlights, tvr)}
LIBRARY = "library.json"  # marks a library, the directory that `midreel index` writes


@dataclass(frozen=True, kw_only=True)
class Place:
    """A dataset that was found but not read yet. `open` reads its annotations."""

    name: str
    layout: Layout
    folder: Path
    open: Callable[[], Annotations]


def is_dataset(folder: Path) -> bool:
    """Return whether a folder has annotation files. The files are not read."""
    return folder.is_dir() and any(True for _ in _places_in(folder))


def find_annotations(root: Path, name: str | None = None) -> tuple[Place, ...]:
    """Return the datasets in `root`. If it has none itself, return those in its subfolders.

    Within one folder your own annotations come first. The captions of a release come second, because their features
    are beside them. The original files of a benchmark come last.

    Args:
        root: The folder of a dataset, or the folder above several.
        name: Return only datasets with this name.

    Raises:
        BadAnnotation: There is no such dataset, or the folder is a library.
    """
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise BadAnnotation(f"{root} {problem}, expected a folder with annotations. Check the path.")
    if (root / LIBRARY).is_file():
        raise BadAnnotation(f'{root} is a library, expected a dataset. Search it: midreel search {root} "a sentence"')
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    found = [place for folder in folders for place in _places_in(folder)]
    wanted = [place for place in found if name in (None, place.name)]
    if not wanted and found:
        names = ", ".join(dict.fromkeys(place.name for place in found))
        raise BadAnnotation(f"{root} contains {names}, expected {name}. Choose one of them or another folder.")
    if not wanted:
        raise BadAnnotation(
            f"{root} contains no dataset, expected {_expected_files(name)}. Download one, or annotate your own "
            f"videos: midreel data new {root}"
        )
    return tuple(place for place in wanted if place.folder == root) or tuple(wanted)


def open_annotations(root: Path, name: str | None = None) -> Annotations:
    """Read the annotations of the dataset in `root`.

    Args:
        root: The folder of the dataset, or the folder above it.
        name: The dataset to choose if there are several.

    Raises:
        BadAnnotation: There is no such dataset, there are several, or the annotations cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "annotations.csv").write_text("video,query,split\\nbeach.mp4,a dog jumps,train\\n")
    ...     print(open_annotations(Path(folder)).split("train").queries[0].text)
    a dog jumps
    """
    places = find_annotations(root, name)
    names = list(dict.fromkeys(place.name for place in places))
    if len(names) > 1:
        raise BadAnnotation(
            f"{root} contains {', '.join(names)}, expected one dataset. Pass the folder or the name of one of them."
        )
    return places[0].open()


def _places_in(folder: Path) -> Iterator[Place]:
    """Yield the datasets of all layouts in a folder, in order of precedence."""
    if own.annotation_files(folder):
        yield Place(name=own.NAME, layout="own", folder=folder, open=partial(own.load, folder))
    for name in release.caption_files(folder):
        yield Place(name=name, layout="release", folder=folder, open=partial(release.load, folder, name))
    for name, original in ORIGINALS.items():
        if any((folder / file).is_file() for file in original.FILES):
            yield Place(name=name, layout="original", folder=folder, open=partial(original.load, folder))


def _expected_files(name: str | None) -> str:
    """Return the names of the files by which a dataset is recognised, for an error message."""
    if name == own.NAME:
        return " or ".join(own.FILES.values())
    captions = f"{release.TEXTS}/{name or '*'}train.caption.txt"
    if name in ORIGINALS:
        return f"{', '.join(ORIGINALS[name].FILES)} or {captions}"
    return f"{', '.join(own.FILES.values())}, {captions} or the original files of {', '.join(ORIGINALS)}"
