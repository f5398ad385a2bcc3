"""A registry of named objects: midreel's own, and those of other packages.

A package registers a method with an entry point of the group `midreel.methods`, and its recipes with one of the group
`midreel.recipes`, both under the name of the method (docs/extend.md). Entry points are imported on first use, so a
broken package does not affect the others.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from midreel.errors import BadPackage, UnknownName

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to objects: `own` first, then the entry points of `group`.

    Args:
        kind: what the objects are, for messages.
        group: the entry point group.
        own: midreel's own objects by name.
        expected: the class that an entry point must be an instance or a subclass of.

    Raises:
        UnknownName: no object has the name.
        BadPackage: an entry point cannot be imported, has the wrong class, or uses a name twice.

    >>> numbers = Registry("number", "some.group", {"one": 1, "two": 2}, expected=int)
    >>> numbers["two"], list(numbers), "three" in numbers
    (2, ['one', 'two'], False)
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, T], expected: type) -> None:
        self._kind, self._group, self._own, self._expected = kind, group, dict(own), expected
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            found = self._entry_points()
            if name not in found:
                raise UnknownName.among(self._kind, name, self)
            self._loaded[name] = self._load(found[name])
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the object with this name, or the default."""
        try:
            return self[name]
        except UnknownName:
            return default

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *sorted(self._entry_points())])

    def __len__(self) -> int:
        return len(self._own) + len(self._entry_points())

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._entry_points()

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Return the entry points by name, without importing them."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._own or entry.name in found:
                raise BadPackage(
                    f"{_package(entry)} registers the {self._kind} {entry.name!r}, which exists already. Rename it or "
                    f"uninstall {_package(entry)}."
                )
            found[entry.name] = entry
        return found

    def _load(self, entry: EntryPoint) -> Any:
        """Import an entry point and check its class."""
        try:
            found = entry.load()
        except Exception as error:  # another package may raise anything on import
            raise BadPackage(
                f"the {self._kind} {entry.name!r} of {_package(entry)} cannot be imported ({type(error).__name__}: "
                f"{error}). Update or uninstall {_package(entry)}."
            ) from error
        is_fit = issubclass(found, self._expected) if isinstance(found, type) else isinstance(found, self._expected)
        if not is_fit:
            raise BadPackage(
                f"the {self._kind} {entry.name!r} of {_package(entry)} is {found!r}, expected a "
                f"{self._expected.__name__}. Fix its entry point {entry.value}."
            )
        return found


def _package(entry: EntryPoint) -> str:
    """Return the name of the package that an entry point belongs to."""
    return entry.dist.name if entry.dist is not None else entry.module
