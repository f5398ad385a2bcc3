"""The band of inner products: compiled code, numpy and blocks, each compared with plain loops."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.ops import neighbours, segments
from midreel.ops.neighbours import neighbour_products

SIZES = (st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 4))


def in_loops(rows: Tensor, reach: int) -> Tensor:
    products = torch.zeros(len(rows), reach, dtype=rows.dtype)
    for row in range(len(rows)):
        for step in range(min(reach, len(rows) - row)):
            products[row, step] = rows[row] @ rows[row + step]
    return products


def in_threads(num_threads: int, multiply: Callable[[], Tensor]) -> Tensor:
    with (
        patch("torch.get_num_threads", return_value=num_threads),
        patch.object(neighbours, "MIN_ROWS_OF_A_THREAD", 8),
    ):
        return multiply()


def by_numpy(rows: Tensor, reach: int) -> Tensor:
    return neighbours.by_dots(rows, reach, neighbours.by_numpy)


@pytest.fixture
def _compiled() -> None:
    if neighbours.compiled() is None:
        pytest.skip("midreel was installed without a C compiler")


def test_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 5.0]])
    assert neighbour_products(rows, 2).tolist() == [[5, 1], [10, -5], [25, 0]]


@pytest.mark.usefixtures("_compiled")
@given(*SIZES)
def test_compiled_equals_the_loop(num_rows: int, width: int, reach: int, num_threads: int) -> None:
    rows = torch.randn(num_rows, width)
    found = in_threads(num_threads, lambda: neighbours.by_dots(rows, reach, neighbours.compiled()))
    torch.testing.assert_close(found, in_loops(rows, reach), rtol=1e-5, atol=1e-5)


@given(*SIZES)
def test_numpy_equals_the_loop(num_rows: int, width: int, reach: int, num_threads: int) -> None:
    rows = torch.randn(num_rows, width, dtype=torch.float64)
    found = in_threads(num_threads, lambda: by_numpy(rows, reach))
    torch.testing.assert_close(found, in_loops(rows, reach))


@given(*SIZES[:3])
def test_blocks_equal_the_loop(num_rows: int, width: int, reach: int) -> None:
    """The algorithm of the GPU, on the CPU."""
    rows = torch.randn(num_rows, width, dtype=torch.float64)
    torch.testing.assert_close(neighbours.by_blocks(rows, reach), in_loops(rows, reach))


def test_threads_split_more_rows_than_a_float_can_count() -> None:
    num_rows, reach = 2**24 + 4, 2
    parts: list[tuple[int, int]] = []
    rows = torch.zeros(1, 1).expand(num_rows, 1)  # takes no memory
    in_threads(3, lambda: neighbours.by_dots(rows, reach, lambda read, filled: parts.append((len(read), len(filled)))))
    assert sum(filled for _, filled in parts) == num_rows
    assert all(read == filled + reach - 1 for read, filled in parts)


@pytest.mark.parametrize("multiply", [neighbour_products, by_numpy, neighbours.by_blocks])
@pytest.mark.parametrize("width", [1, 8, 127, 128, 136, 2816])
def test_a_product_does_not_depend_on_its_position(width: int, multiply: Callable[[Tensor, int], Tensor]) -> None:
    """Equal rows must give equal products, or equal pairs of frames would merge in an arbitrary order."""
    row = torch.randn(width)
    products = multiply(row.expand(300, width).contiguous(), 8)
    for step in range(8):
        assert len(products[: 300 - step, step].unique()) == 1


@pytest.mark.usefixtures("_compiled")
def test_rows_after_the_last_are_not_read() -> None:
    rows = torch.full((64, 24), torch.nan)
    rows[:40] = torch.randn(40, 24)
    products = torch.empty(33, 8)
    compiled = neighbours.compiled()
    assert compiled is not None
    compiled(rows, products)
    assert products.isfinite().all()


@pytest.mark.usefixtures("_compiled")
def test_other_strides_and_rows_with_gradients() -> None:
    rows = torch.randn(50, 20)
    expected = neighbour_products(rows, 4)
    assert neighbour_products(rows.T.contiguous().T, 4).equal(expected)
    assert neighbour_products(rows.clone().requires_grad_(), 4).equal(expected)


@pytest.mark.usefixtures("_compiled")
def test_without_a_compiler_the_same_frames_merge() -> None:
    frames = torch.randn(20, 128, 33)
    merged = segments.order_preserving(frames)
    with patch.object(neighbours, "compiled", return_value=None) as asked:
        assert segments.order_preserving(frames).equal(merged)
    asked.assert_called_once()


@pytest.mark.parametrize("content", [None, b"", b"for another system"])
def test_a_missing_or_damaged_library_is_ignored(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None
    if content is not None:
        library = tmp_path / "_neighbours.so"
        library.write_bytes(content)
        spec = importlib.util.spec_from_file_location("midreel.ops._neighbours", library)
        assert spec is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert neighbours.compiled.__wrapped__() is None
