"""The published results: complete, consistent, and the same in every place."""

from collections import Counter

import pytest

from midreel.cli import tables
from midreel.errors import UnknownName
from midreel.features.kinds import KINDS
from midreel.methods import METHODS
from midreel.recipes.published import FEATURES, LABELS, MSC_OTHERS, MSC_QV, RESULTS, Result, find

# Rows whose printed SumR is 0.1 more or less than the sum of the printed recalls. No row is further off.
ROUNDED = {
    ("ms_sl", "qvhighlights", MSC_QV),
    ("ms_sl", "tvr", "MS-SL paper"),
    ("dl_dkd", "tvr", "DL-DKD paper"),
    ("gmmformer_v2", "tvr", "GMMFormer v2 paper"),
    ("gmmformer_v2", "tvr", MSC_OTHERS),
    ("bgm_net", "activitynet", "BGM-Net README of April 2023"),
    ("proto_prvr", "activitynet", "TF-PRVR paper, table 6"),
    ("clip_zero_shot", "activitynet", MSC_OTHERS),
    ("ms_sl", "activitynet", MSC_OTHERS),
    ("amdnet", "activitynet", MSC_OTHERS),
    ("bgm_net", "activitynet", MSC_OTHERS),
    ("gmmformer", "charades", "GMMFormer paper"),
    ("ms_sl", "charades", MSC_OTHERS),
    ("amdnet", "charades", MSC_OTHERS),
    ("gmmformer_v2", "charades", MSC_OTHERS),
}


def name_of(result: Result) -> tuple[str, str, str]:
    return result.method, result.dataset, result.source


@pytest.mark.parametrize("result", [each for each in RESULTS if each.recalls], ids=lambda each: "-".join(name_of(each)))
def test_the_recalls_add_up(result: Result) -> None:
    assert sum(result.recalls) == pytest.approx(result.sumr, abs=0.35)
    assert list(result.recalls) == sorted(result.recalls)
    assert (abs(sum(result.recalls) - result.sumr) > 0.05) == (name_of(result) in ROUNDED)


def test_every_cell_is_there_once() -> None:
    cells = [(each.method, each.variant, each.dataset, each.features) for each in RESULTS]
    assert len(cells) == len(set(cells)) == 76
    assert {each.method for each in RESULTS} == set(LABELS)
    assert {each.features for each in RESULTS} == set(FEATURES) - {"clip-b32", "tiny-clip"}
    for each in RESULTS:
        if each.features in KINDS:
            assert KINDS[each.features].widths(each.dataset) is not None
    # The MSC paper has 7 rows on QVHighlights, 9 on TVR and ActivityNet, 7 on Charades-STA.
    counts = Counter((each.source, each.dataset) for each in RESULTS if each.source in (MSC_QV, MSC_OTHERS))
    assert counts == {
        (MSC_QV, "qvhighlights"): 7,
        (MSC_OTHERS, "tvr"): 9,
        (MSC_OTHERS, "activitynet"): 9,
        (MSC_OTHERS, "charades"): 7,
    }


def test_all_our_methods_have_results() -> None:
    """The names are those of midreel's methods. The residual methods are beyond the papers."""
    assert set(METHODS._own) - {"clip_residual", "msc_residual"} <= set(LABELS)


def test_find() -> None:
    assert find() == list(RESULTS)
    (ours,) = find("msc", "qvhighlights")
    assert ours.figures() == {"R@1": 23.9, "R@5": 51.5, "R@10": 63.7, "R@100": 95.5, "SumR": 234.6}
    assert [each.sumr for each in find("tf_prvr", "charades")] == [80.8, 85.4]
    assert find("tf_prvr", "charades")[0].figures() == {"SumR": 80.8}
    assert find("arl", "charades") == []
    with pytest.raises(UnknownName, match="ms_sl"):
        find("ms-sl")
    with pytest.raises(UnknownName, match="qvhighlights"):
        find(dataset="qv")


def test_reproduced_results_are_marked() -> None:
    reproduced = {(each.method, each.dataset) for each in RESULTS if each.reproduced}
    assert {dataset for method, dataset in reproduced if method == "gmmformer_v2"} == {
        "qvhighlights", "tvr", "activitynet", "charades",
    }  # fmt: skip
    assert {method for method, dataset in reproduced if dataset == "charades"} == {
        "ms_sl", "gmmformer", "amdnet", "bgm_net", "gmmformer_v2",
    }  # fmt: skip
    assert len(reproduced) == 8


def test_the_table_fits_a_terminal() -> None:
    lines = tables.published_results(RESULTS).splitlines()
    assert max(map(len, lines)) <= 80
    assert ["msc", "23.9", "51.5", "63.7", "95.5", "234.6", "MSC", "paper,", "table", "4"] in [x.split() for x in lines]
    assert lines[-1].startswith("†")
    assert tables.published_results([]) == ""
