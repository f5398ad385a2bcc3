"""Files that could not be read, with the reason, so that the next run need not try them again unless they change."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from midreel.errors import BadStore
from midreel.io.files import write_durably


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file as it was when it could not be read."""

    path: str
    reason: str
    size: int
    modified: int  # nanoseconds since 1970


class Quarantine:
    """A small JSON file beside a store: videos by id. It is whole at any moment, and gone when nothing is in it.

    With `retry`, nothing is kept from being tried again.
    """

    def __init__(self, store: Path, *, retry: bool = False) -> None:
        self.path = store.with_suffix(".quarantine.json")
        self._retry = retry
        self._cases = self._read()

    def reason(self, video_id: str, path: Path | None) -> str | None:
        """Why the video is not to be tried; None if it is, because nothing is known or the file is another by now."""
        case = self._cases.get(video_id)
        if case is None or path is None or self._retry:
            return None
        return case.reason if _state(path) == (case.size, case.modified) else None

    def add(self, video_id: str, path: Path, reason: str) -> None:
        state = _state(path)
        if state is not None:
            self._cases[video_id] = Case(path=str(path), reason=reason, size=state[0], modified=state[1])
            self._write()

    def release(self, video_id: str) -> None:
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
                f"{self.path} cannot be read ({error}), expected what midreel extract writes; delete it, and all "
                f"files are tried again"
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
