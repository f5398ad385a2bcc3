import csv
import io
import json
import math
import re
import statistics
from pathlib import Path

import ir_measures
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadAnnotation, BadBatch, BadSetting
from midreel.evaluation import metrics, tables
from midreel.evaluation.tables import (
    FORMATS,
    Spread,
    over_seeds,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
    to_text,
    write_trec_qrels,
    write_trec_run,
)

ROWS: tables.Rows = {
    "base": {"R@1": 12.34, "SumR": 200.06, "Diff. Norm": 0.7872},
    "MSC": {"R@1": Spread(mean=15.0, spread=0.55, num=3), "SumR": 210.0, "Diff. Norm": -0.46},
    "clip_zero_shot": {"R@1": math.nan, "SumR": None},
}


class TestSpread:
    def test_by_hand(self) -> None:
        # Deviations -2, 0, 2: the squares sum to 8, over n - 1 = 2 that is 4.
        assert Spread.of([1.0, 3.0, 5.0]) == Spread(mean=3.0, spread=2.0, num=3)

    def test_one_run(self) -> None:
        assert Spread.of([4.0]) == Spread(mean=4.0, spread=0.0, num=1)
        assert "±" not in to_markdown({"a": {"x": Spread.of([4.0])}})

    def test_a_run_without_the_figure(self) -> None:
        cell = Spread.of([1.0, math.nan])
        assert (math.isnan(cell.mean), math.isnan(cell.spread), cell.num) == (True, True, 2)
        assert to_markdown({"a": {"x": cell}}) == to_markdown({"a": {"x": None}})

    @given(st.lists(st.floats(-100, 100), min_size=2, max_size=6))
    def test_equals_the_loop(self, values: list[float]) -> None:
        mean = sum(values) / len(values)
        squares = 0.0
        for value in values:
            squares += (value - mean) ** 2
        found = Spread.of(values)
        assert found.mean == pytest.approx(mean, abs=1e-9)
        assert found.spread == pytest.approx(math.sqrt(squares / (len(values) - 1)), abs=1e-6)

    def test_no_run(self) -> None:
        with pytest.raises(BadSetting, match="empty"):
            Spread.of([])

    def test_over_seeds(self) -> None:
        table = over_seeds({"a": [{"x": 1.0, "y": 5.0}, {"y": 7.0, "x": 3.0}], "b": [{"x": 2.0}]})
        assert table["a"] == {"x": Spread.of([1.0, 3.0]), "y": Spread.of([5.0, 7.0])}
        assert table["b"] == {"x": Spread(mean=2.0, spread=0.0, num=1)}

    def test_runs_that_differ(self) -> None:
        with pytest.raises(BadSetting, match=r"run 1 of 'a'.*\['y'\]"):
            over_seeds({"a": [{"x": 1.0, "y": 5.0}, {"x": 3.0}]})


class TestText:
    def test_by_hand(self) -> None:
        assert to_text(ROWS, digits={"Diff. Norm": 2}, corner="method") == (
            "method                 R@1   SumR  Diff. Norm\n"
            "base                  12.3  200.1        0.79\n"
            "MSC             15.0 ± 0.6  210.0       -0.46\n"
            "clip_zero_shot           –      –           –\n"  # noqa: RUF001
        )

    def test_a_wide_table_is_transposed_or_split(self) -> None:
        one: tables.Rows = {"a b": {"R@1": 12.3, "R@100": 99.9}}
        assert to_text(one, width=12) == "        a b\nR@1    12.3\nR@100  99.9\n"
        two: tables.Rows = one | {"c": one["a b"]}
        assert to_text(two, width=13) == "      R@1\na b  12.3\nc    12.3\n\n     R@100\na b   99.9\nc     99.9\n"

    @given(
        st.dictionaries(st.text("ab c", max_size=9), st.just({"R@1": 1.0, "SumR": 222.2, "mIoU": 0.5}), max_size=6),
        st.integers(0, 60),
    )
    def test_no_cell_is_cut(self, rows: tables.Rows, width: int) -> None:
        lines = to_text(rows, width=width).splitlines()
        assert sum(line.count("222.2") for line in lines) == len(rows)
        assert max(map(len, lines)) <= max(width, 9 + 2 + 9)


class TestMarkdown:
    def test_by_hand(self) -> None:
        assert to_markdown(ROWS, digits={"Diff. Norm": 2}, corner="method") == (
            "| method | R@1 | SumR | Diff. Norm |\n"
            "| --- | ---: | ---: | ---: |\n"
            "| base | 12.3 | 200.1 | 0.79 |\n"
            "| MSC | 15.0 ± 0.6 | 210.0 | -0.46 |\n"
            "| clip\\_zero\\_shot | – | – | – |\n"  # noqa: RUF001
        )

    def test_columns_are_picked_and_ordered(self) -> None:
        assert to_markdown(ROWS, ["SumR", "R@1"]).splitlines()[2] == "| base | 200.1 | 12.3 |"

    def test_an_unknown_column(self) -> None:
        with pytest.raises(BadSetting, match=r"\['R@7'\].*R@1, SumR, Diff\. Norm"):
            to_markdown(ROWS, ["R@7"])

    @given(st.text(st.characters(codec="ascii"), max_size=20))
    def test_any_name_stays_one_cell_and_reads_back(self, name: str) -> None:
        line = to_markdown({name: {"x": 1.0}}).splitlines()[2]
        cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)
        assert len(cells) == 4
        shown = line.removeprefix("| ").removesuffix(" | 1.0 |")
        assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", shown) == " ".join(name.split())

    def test_markup_is_text(self) -> None:
        assert to_markdown({"a|b *c* <d> [e](f) `g` $h$ &amp; ~i~": {}}).splitlines()[2] == (
            r"| a\|b \*c\* \<d\> \[e\](f) \`g\` \$h\$ \&amp; \~i\~ |"
        )

    def test_no_negative_zero(self) -> None:
        assert "| 0.0 |" in to_markdown({"a": {"x": -0.01}})


class TestLatex:
    def test_by_hand(self) -> None:
        assert to_latex(ROWS, ["R@1", "Diff. Norm"], digits={"Diff. Norm": 2}, corner="method") == (
            "\\begin{tabular}{lrr}\n"
            "\\toprule\n"
            "method & R@1 & Diff. Norm \\\\\n"
            "\\midrule\n"
            "base & $12.3$ & $0.79$ \\\\\n"
            "MSC & $15.0 \\pm 0.6$ & $-0.46$ \\\\\n"
            "clip\\_zero\\_shot & -- & -- \\\\\n"
            "\\bottomrule\n"
            "\\end{tabular}\n"
        )

    @given(st.text(st.characters(codec="ascii"), max_size=20))
    def test_no_special_character_is_left(self, name: str) -> None:
        line = to_latex({name: {}}).splitlines()[4].removesuffix(r" \\")
        for command in sorted(tables.LATEX_ESCAPES.values(), key=len, reverse=True):
            line = line.replace(command, "")
        assert not set(line) & set(tables.LATEX_ESCAPES)

    def test_specials(self) -> None:
        assert r"50\% of A\&B\_\{1\}, \textbackslash{}x\textasciicircum{}2 \textless{} \$3" in to_latex(
            {"50% of A&B_{1}, \\x^2 < $3": {}}
        )


class TestForPrograms:
    def test_csv_reads_back(self) -> None:
        lines = list(csv.DictReader(io.StringIO(to_csv(ROWS, corner="method"))))
        assert list(lines[0]) == ["method", "R@1", "R@1 spread", "R@1 runs", "SumR", "Diff. Norm"]
        assert [line["method"] for line in lines] == list(ROWS)
        assert (lines[0]["R@1"], lines[0]["R@1 spread"]) == ("12.34", "")
        assert (lines[1]["R@1"], lines[1]["R@1 spread"], lines[1]["R@1 runs"]) == ("15.0", "0.55", "3")
        assert (lines[2]["R@1"], lines[2]["SumR"], lines[2]["Diff. Norm"]) == ("", "", "")

    @given(st.text(st.characters(codec="utf-8")), st.floats())
    def test_csv_keeps_names_and_digits(self, name: str, value: float) -> None:
        rows = list(csv.reader(io.StringIO(to_csv({name: {"x, y": value}}), newline="")))
        assert rows == [["", "x, y"], [" ".join(name.split()), repr(value) if math.isfinite(value) else ""]]

    def test_json_reads_back(self) -> None:
        assert json.loads(to_json(ROWS)) == {
            "base": ROWS["base"],
            "MSC": {"R@1": {"mean": 15.0, "spread": 0.55, "num": 3}, "SumR": 210.0, "Diff. Norm": -0.46},
            "clip_zero_shot": {"R@1": None, "SumR": None, "Diff. Norm": None},
        }

    def test_formats(self) -> None:
        assert list(FORMATS) == sorted(FORMATS)
        assert all(render(ROWS).endswith("\n") for render in FORMATS.values())
        assert all(render({}).endswith("\n") for render in FORMATS.values())


def names(kind: str, num: int) -> list[str]:
    return [f"{kind}-{i}" for i in range(num)]


class TestTrec:
    def test_by_hand(self, tmp_path: Path) -> None:
        scores = torch.tensor([[0.1, 0.9, 0.5], [0.25, 0.25, -1.5]])
        write_trec_run(tmp_path / "run", scores, ["q0", "q1"], ["a", "b", "c"], depth=2, tag="msc")
        assert (tmp_path / "run").read_text() == (
            "q0 Q0 b 1 0.9 msc\nq0 Q0 c 2 0.5 msc\nq1 Q0 a 1 0.25 msc\nq1 Q0 b 2 0.25 msc\n"
        )
        write_trec_qrels(tmp_path / "qrels", torch.tensor([2, 0]), ["q0", "q1"], ["a", "b", "c"])
        assert (tmp_path / "qrels").read_text() == "q0 0 c 1\nq1 0 a 1\n"

    def test_recalls_agree_with_ir_measures(self, tmp_path: Path) -> None:
        num_queries, num_videos = 60, 150
        scores = torch.randn(num_queries, num_videos)
        video_of_query = torch.randint(num_videos, (num_queries,))
        scores[torch.arange(num_queries), video_of_query] += 2 * torch.rand(num_queries)  # right now and then
        queries, videos = names("q", num_queries), names("v", num_videos)
        write_trec_run(tmp_path / "run", scores, queries, videos)
        write_trec_qrels(tmp_path / "qrels", video_of_query, queries, videos)
        for measure in (ir_measures.Success, ir_measures.R):
            theirs = ir_measures.calc_aggregate(
                [measure @ k for k in metrics.RECALLS_AT],
                ir_measures.read_trec_qrels(str(tmp_path / "qrels")),
                ir_measures.read_trec_run(str(tmp_path / "run")),
            )
            ours = metrics.recalls(metrics.ranks(scores, video_of_query))
            assert 0 < ours["R@1"] < ours["R@100"] < 100
            for k in metrics.RECALLS_AT:
                assert ours[f"R@{k}"] == pytest.approx(100 * theirs[measure @ k])

    def test_ties_are_at_least_as_pessimistic_as_trec(self, tmp_path: Path) -> None:
        num_queries, num_videos = 40, 12
        scores = torch.randint(4, (num_queries, num_videos)).float()
        video_of_query = torch.randint(num_videos, (num_queries,))
        queries, videos = names("q", num_queries), names("v", num_videos)
        write_trec_run(tmp_path / "run", scores, queries, videos)
        write_trec_qrels(tmp_path / "qrels", video_of_query, queries, videos)
        theirs = ir_measures.calc_aggregate(
            [ir_measures.Success @ 5],
            ir_measures.read_trec_qrels(str(tmp_path / "qrels")),
            ir_measures.read_trec_run(str(tmp_path / "run")),
        )
        ours = metrics.recalls(metrics.ranks(scores, video_of_query))["R@5"]
        assert ours < 100 * theirs[ir_measures.Success @ 5]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_scores_read_back_exactly(self, tmp_path: Path, dtype: torch.dtype) -> None:
        scores = torch.randn(1, 50).to(dtype)
        write_trec_run(tmp_path / "run", scores, ["q"], names("v", 50))
        lines = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
        order = [int(line[2].removeprefix("v-")) for line in lines]
        assert torch.tensor([float(line[4]) for line in lines], dtype=dtype).equal(scores[0, order])
        assert [int(line[3]) for line in lines] == list(range(1, 51))
        assert statistics.fmean(order) == 24.5

    def test_bad_input(self, tmp_path: Path) -> None:
        path, scores = tmp_path / "run", torch.zeros(2, 3)
        with pytest.raises(BadAnnotation, match=r"query_ids has 1 .*expected 2"):
            write_trec_run(path, scores, ["q"], names("v", 3))
        with pytest.raises(BadAnnotation, match=r"video_ids .*'my video'"):
            write_trec_run(path, scores, ["q0", "q1"], ["a", "my video", "b"])
        with pytest.raises(BadAnnotation, match=r"query_ids .*'q'"):
            write_trec_qrels(path, torch.tensor([0, 1]), ["q", "q"], names("v", 3))
        with pytest.raises(BadAnnotation, match=r"tag .*''"):
            write_trec_run(path, scores, ["q0", "q1"], names("v", 3), tag="")
        with pytest.raises(BadSetting, match="depth is 0"):
            write_trec_run(path, scores, ["q0", "q1"], names("v", 3), depth=0)
        with pytest.raises(BadBatch, match="6 of 6"):
            write_trec_run(path, scores * torch.nan, ["q0", "q1"], names("v", 3))
        with pytest.raises(BadAnnotation, match=r"\[5\], expected 0 to 2"):
            write_trec_qrels(path, torch.tensor([0, 5]), ["q0", "q1"], names("v", 3))
        assert not path.exists()
