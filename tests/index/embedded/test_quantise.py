import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.embedded import kernels, quantise


def vectors(seed: int, number: int, width: int) -> np.ndarray:
    return quantise.unit(np.random.default_rng(seed).standard_normal((number, width)).astype(np.float32))


def test_quantised_by_hand() -> None:
    rows, scales = quantise.quantised(np.array([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]], np.float32))
    assert rows.tolist() == [[127, -64, 0], [0, 0, 0]]  # rint rounds -63.5 to the even number
    assert scales.tolist() == pytest.approx([1 / 127, 0])


@given(st.integers(0, 1000), st.integers(1, 70))
def test_nine_bits_keep_the_length_and_halve_the_error(seed: int, width: int) -> None:
    units = vectors(seed, 20, width)
    rows, bits, scales = quantise.in_nine_bits(units)
    assert bits.shape == (20, -(-width // 8))
    kept = quantise.restored(rows, bits, scales)
    assert np.linalg.norm(kept, axis=1) == pytest.approx(np.ones(20), abs=1e-5)
    step = np.abs(units).max(1, keepdims=True) / quantise.LEVELS
    assert (np.abs(kept - units) <= 0.26 * step + np.abs(units) * 0.01).all()


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 20))
def test_pooling_covers_every_token_once_or_repeats_them(seed: int, tokens: int, number: int) -> None:
    pooled = quantise.pooled(vectors(seed, tokens, 8), number)
    assert pooled.shape == (number, 8)
    if tokens <= number:
        every = {tuple(np.round(row, 4)) for row in vectors(seed, tokens, 8)}
        assert {tuple(np.round(row, 4)) for row in pooled} == every


def test_pooling_by_hand() -> None:
    pooled = quantise.pooled(np.eye(4, dtype=np.float32), 2)
    assert pooled == pytest.approx(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]) / np.sqrt(2))


@pytest.mark.parametrize("name", kernels.KERNELS)
@pytest.mark.parametrize("number", [0, 1, 700])
def test_kernels_compute_exact_integers(name: str, number: int) -> None:
    if name == "numkong":
        pytest.importorskip("numkong", reason="numkong is not installed: pip install midreel[fast]")
    generator = np.random.default_rng(0)
    padded = generator.integers(-127, 128, (number, 30), dtype=np.int8)
    query = generator.integers(-127, 128, 24, dtype=np.int8)
    rows = padded[:, :24]  # rows of a file are longer than their vectors
    products = kernels.choose(name)(rows, query)
    assert products.dtype == np.float32
    assert (products == rows.astype(np.int64) @ query.astype(np.int64)).all()
