import pytest
import torch

from midreel.experiments import costs


def test_peak_is_the_most_at_one_time() -> None:
    kept = torch.zeros(1000)  # not counted: it was there before

    def run() -> float:
        large = torch.ones(100_000)
        del large
        small = torch.ones(50_000)
        return float(small[0] + kept[0])

    found = costs.peak_bytes(run)
    assert 400_000 <= found < 410_000


def test_operations_of_a_product() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert costs.num_flops(lambda: a @ b) == 2 * 3 * 4 * 5


def test_bytes() -> None:
    assert costs.num_bytes([torch.zeros(3), torch.zeros(2, dtype=torch.float16)]) == 16


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    times = costs.in_turns([lambda: calls.append("a"), lambda: calls.append("b")], rounds=2)
    assert calls == ["a", "b"] * 3  # one of them is the warm-up
    assert [len(each) for each in times] == [2, 2]
    assert all(each >= 0 for of in times for each in of)
    found = costs.ratios(lambda: sum(range(1000)), lambda: sum(range(1000)), rounds=3)
    assert found == sorted(found)


def test_middle() -> None:
    assert costs.middle([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert costs.middle([4.0]) == (4.0, pytest.approx(0))
