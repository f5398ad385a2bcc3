"""The quarantine: unreadable files, which later runs skip until they change."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from midreel.errors import BadStore
from midreel.io.files import write_durably


@dataclass(frozen=True, kw_only=True)
class Case:
    """An unreadable file: its size and modification time when it was read, and the reason."""

    path: str
    reason: str
    size: int
    modified: int  # nanoseconds since 1970


class Quarantine:
    """The unreadable files of a feature store, in a JSON file next to it. An empty quarantine has no file.

    Args:
        store: The path of the feature store.
        retry: Let all files be read again.

    Raises:
        BadStore: If the JSON file cannot be read.
    """

    def __init__(self, store: Path, *, retry: bool = False) -> None:
        self.path = store.with_suffix(".quarantine.json")
        self._retry = retry
        self._cases = self._read()

    def reason(self, video_id: str, path: Path | None) -> str | None:
        """Return why a video must be skipped, or None if it should be read: it is new, or its file has changed."""
        case = self._cases.get(video_id)
        if case is None or path is None or self._retry:
            return None
        return case.reason if _state(path) == (case.size, case.modified) else None

    def add(self, video_id: str, path: Path, reason: str) -> None:
        """Add an unreadable file, and write the JSON file. A file that no longer exists is not added.

        Args:
            video_id: The id of the video.
            path: The unreadable file.
            reason: Why it cannot be read.
        """
        state = _state(path)
        if state is not None:
            self._cases[video_id] = Case(path=str(path), reason=reason, size=state[0], modified=state[1])
            self._write()

    def release(self, video_id: str) -> None:
        """Remove a video that has been read, and write the JSON file."""
        if self._cases.pop(video_id, None) is not None:
            self._write()

    def __len__(self) -> int:
        return len(self._cases)

    def _read(self) -> dict[str, Case]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return {video_id: Case(**case) for video_id, case in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise BadStore(
                f"{self.path} cannot be read ({error}), expected the JSON of midreel extract. Delete it to retry all "
                f"files."
            ) from error

    def _write(self) -> None:
        if not self._cases:
            self.path.unlink(missing_ok=True)
            return
        text = json.dumps({video_id: asdict(case) for video_id, case in self._cases.items()}, indent=2)
        write_durably(self.path, f"{text}\n".encode())


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
