"""Shards: divide videos among machines by their content, so that each machine extracts a part of them.

A shard K/N has the videos whose content id, as a number, leaves the remainder K - 1 when divided by N. A file has the
same shard under every name and on every machine, so copies of a video are in one shard. Nothing needs to coordinate.

A part, a store or a library, records its shard and whether its run has finished: `PART.shard.json` beside a store,
`shard.json` in a library. A run that was killed leaves a part that is not finished.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from midreel.errors import BadSetting, BadStore
from midreel.features.stores import origins
from midreel.io.files import write_durably

NAME = "shard.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of `count` parts of all videos.

    >>> shard = Shard.parse("2/3")
    >>> [shard.has_id(f"{number:x}") for number in range(4)]
    [False, True, False, False]

    Attributes:
        number: The number of the part, from 1.
        count: The number of parts.
        finished: Whether the run that made the part has reached its end.

    Raises:
        BadSetting: The number is not from 1 to `count`.
    """

    number: int
    count: int
    finished: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise BadSetting(f"the shard is {self}, expected K/N with K from 1 to N. Try 1/{max(self.count, 1)}.")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard of a text such as "3/16".

        Raises:
            BadSetting: The text has another form.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None:
            raise BadSetting(f"the shard is {text!r}, expected K/N with K from 1 to N. Try 1/2.")
        return cls(number=int(found[1]), count=int(found[2]))

    def has_id(self, content_id: str) -> bool:
        """Return whether the video with this content id is in the shard."""
        return int(content_id, 16) % self.count == self.number - 1

    def has_text(self, text: str) -> bool:
        """Return whether a text is in the shard."""
        return origins.of_text(text) % self.count == self.number - 1

    def has_file(self, path: Path) -> bool:
        """Return whether the video in a file is in the shard. A file that cannot be read is in the first shard."""
        try:
            return self.has_id(origins.content_id(path))
        except OSError:
            return self.number == 1  # it is reported once, not by every machine

    def part_of(self, store: Path) -> Path:
        """Return the default file of the shard's part of a store: features.part-3-of-16.h5."""
        return store.with_name(f"{store.stem}.part-{self.number}-of-{self.count}{store.suffix}")

    def record(self, part: Path, *, finished: bool) -> None:
        """Record that a run has begun to make a part, or has finished it.

        Args:
            part: The store or library.
            finished: Whether the run has reached its end.

        Raises:
            BadSetting: The part has another shard.
        """
        recorded = read(part)
        if recorded is not None and (recorded.number, recorded.count) != (self.number, self.count):
            raise BadSetting(f"{part} has the shard {recorded}, expected {self}. Choose another --out or --library.")
        write_durably(_file(part), json.dumps(asdict(replace(self, finished=finished))) + "\n")


def read(part: Path) -> Shard | None:
    """Return the shard of a part, or None if it is not one.

    Raises:
        BadStore: The record is damaged.
    """
    path = _file(part)
    try:
        return Shard(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise BadStore(f"{path} is damaged ({error}), expected a shard. Run the command of this part again.") from error


def unfinished(parts: list[Path]) -> dict[str, str]:
    """Return what is missing in some parts, with the reason: parts whose run did not finish, and absent shards."""
    found = {part: read(part) for part in parts}
    missing = {
        str(part): f"the run of shard {shard} did not finish. Run its command again."
        for part, shard in found.items()
        if shard is not None and not shard.finished
    }
    for count in sorted({shard.count for shard in found.values() if shard is not None}):
        present = {shard.number for shard in found.values() if shard is not None and shard.count == count}
        for number in sorted(set(range(1, count + 1)) - present):
            missing[f"{number}/{count}"] = "no part has this shard."
    return missing


def _file(part: Path) -> Path:
    return part / NAME if part.is_dir() else part.with_name(f"{part.name}.{NAME}")
