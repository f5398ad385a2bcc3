from pathlib import Path

from tools import crash_index


def test_a_few_kills(tmp_path: Path) -> None:
    assert crash_index.crash(tmp_path / "index", times=12, seed=1).startswith("12 kills")
