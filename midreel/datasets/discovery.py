"""Find the datasets in a folder, and the layout of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from midreel.datasets import activitynet, charades, own, qvhighlights, release, tvr
from midreel.datasets.annotations import Annotations, Layout
from midreel.errors import BadAnnotation

ORIGINALS = {module.NAME: module for module in (activitynet, charades, qvhighlights, tvr)}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A dataset that has been recognised and not yet read."""

    name: str
    layout: Layout
    folder: Path
    open: Callable[[], Annotations]


LIBRARY = "library.json"  # what a folder holds that midreel index made


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds annotations, as far as the names of its files tell."""
    return folder.is_dir() and any(True for _ in _recognised(folder))


def find_annotations(root: Path, name: str | None = None) -> tuple[Place, ...]:
    """The datasets (of that name) in `root`; in the folders in it, if there are none in itself.

    In one folder, a person's own annotations come first, then a release's captions, which have features beside them,
    then a benchmark's own files.
    """
    if not root.is_dir():
        raise BadAnnotation(f"there is no folder {root}, expected one with annotations; check the path")
    if (root / LIBRARY).is_file():
        raise BadAnnotation(f'{root} is a library, expected a dataset. Search it: midreel search {root} "a sentence"')
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    found = [place for folder in folders for place in _recognised(folder)]
    wanted = [place for place in found if name in (None, place.name)]
    if not wanted and found:
        names = ", ".join(dict.fromkeys(place.name for place in found))
        raise BadAnnotation(f"{root} holds {names}, expected {name}; choose what is there, or another folder")
    if not wanted:
        raise BadAnnotation(
            f"{root} holds no dataset, expected in it, or in a folder in it, {_sought(name)}; fetch the files, or "
            f"begin your own: midreel data new {root}"
        )
    return tuple(place for place in wanted if place.folder == root) or tuple(wanted)


def open_annotations(root: Path, name: str | None = None) -> Annotations:
    """The dataset in `root`, which is its folder or the one above; `name` tells which, if there are several."""
    places = find_annotations(root, name)
    names = list(dict.fromkeys(place.name for place in places))
    if len(names) > 1:
        raise BadAnnotation(
            f"{root} holds {', '.join(names)}, expected one dataset; name its folder, or choose it by its name"
        )
    return places[0].open()


def _recognised(folder: Path) -> Iterator[Place]:
    if own.annotation_files(folder):
        yield Place(name=own.NAME, layout="own", folder=folder, open=partial(own.collect, folder))
    for name in release.caption_files(folder):
        yield Place(name=name, layout="release", folder=folder, open=partial(release.collect, folder, name))
    for name, original in ORIGINALS.items():
        if any((folder / file).is_file() for file in original.FILES):
            yield Place(name=name, layout="original", folder=folder, open=partial(original.collect, folder))


def _sought(name: str | None) -> str:
    """The files by which a dataset would have been recognised."""
    if name == own.NAME:
        return " or ".join(own.FILES.values())
    captions = f"a release's {release.TEXTS}/{name or '*'}train.caption.txt"
    if name in ORIGINALS:
        return f"{', '.join(ORIGINALS[name].FILES)} or {captions}"
    return f"{', '.join(own.FILES.values())}, {captions} or the original files of {', '.join(ORIGINALS)}"
