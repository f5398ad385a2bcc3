"""The methods by name: midreel's own, and those of other packages.

A package offers a method by an entry point of the group `midreel.methods`, and its recipes by one of the group
`midreel.recipes`, both under the method's name (docs/extend.md). What a package offers is imported when it is asked
for, so one that is broken does not keep the others from working.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from midreel.errors import BadPackage, UnknownName

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Things by name: `own` ones, then those that other packages offer by entry points of `group`."""

    def __init__(self, kind: str, group: str, own: Mapping[str, T], expected: type) -> None:
        self._kind, self._group, self._own, self._expected = kind, group, dict(own), expected
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            offered = self._offered()
            if name not in offered:
                raise UnknownName.among(self._kind, name, self)
            self._loaded[name] = self._load(offered[name])
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except UnknownName:
            return default

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *sorted(self._offered())])

    def __len__(self) -> int:
        return len(self._own) + len(self._offered())

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._offered()

    def _offered(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._own or entry.name in found:
                raise BadPackage(
                    f"{_package(entry)} offers the {self._kind} {entry.name!r}, which exists already. Rename it there, "
                    f"or uninstall {_package(entry)}"
                )
            found[entry.name] = entry
        return found

    def _load(self, entry: EntryPoint) -> Any:
        try:
            found = entry.load()
        except Exception as error:  # whatever another package does when it is imported
            raise BadPackage(
                f"the {self._kind} {entry.name!r} of {_package(entry)} cannot be imported ({type(error).__name__}: "
                f"{error}). Update or uninstall {_package(entry)}"
            ) from error
        is_fit = issubclass(found, self._expected) if isinstance(found, type) else isinstance(found, self._expected)
        if not is_fit:
            raise BadPackage(
                f"the {self._kind} {entry.name!r} of {_package(entry)} is {found!r}, expected a "
                f"{self._expected.__name__}. Fix its entry point {entry.value}"
            )
        return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
