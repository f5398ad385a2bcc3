import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from midreel.features import origins
from midreel.features.ledger import UNKNOWN


@given(st.text(), st.text())
def test_texts_are_told_apart(first: str, second: str) -> None:
    assert (origins.of_text(first) == origins.of_text(second)) == (first == second)
    assert UNKNOWN < origins.of_text(first) < 2**64


def test_a_copy_has_the_origin_of_its_file(tmp_path: Path) -> None:
    for size in (0, 1, 1 << 16, 5 << 16):
        file, copy = tmp_path / "film", tmp_path / "copy"
        file.write_bytes(bytes(size))
        shutil.copy(file, copy)
        assert origins.of_file(file) == origins.of_file(copy)


def test_another_length_beginning_middle_or_end_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "film"
    seen = set()
    for size, changed in ((5 << 16, None), (5 << 16, 0), (5 << 16, 5 << 15), (5 << 16, -1), ((5 << 16) + 1, None)):
        content = bytearray(size)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        seen.add(origins.of_file(path))
    assert len(seen) == 5
