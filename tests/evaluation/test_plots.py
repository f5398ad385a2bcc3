import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation import plots
from midreel.ops.calibration import reliability
from midreel.types import Moment

PNG = b"\x89PNG\r\n\x1a\n"


def size_of(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(PNG)
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test draws."""
    figures: list[Figure] = []
    save = plots._save

    def remember(figure: Figure, path: Path | str) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", remember)
    return figures


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


HISTORIES = {
    "base": [
        {"epoch": 1, "loss": 3.0, "SumR": 90.0},
        {"epoch": 2, "loss": 2.0, "SumR": 120.0},
        {"epoch": 3, "loss": 1.0},
    ],
    "costs $5 or $6": [{"loss": 4.0}, {"loss": 2.5, "SumR": 150.0}],
}


class TestLearningCurves:
    def test_lines(self, drawn: list[Figure], tmp_path: Path) -> None:
        plots.learning_curves(HISTORIES, tmp_path / "new" / "curves.png")
        assert size_of(tmp_path / "new" / "curves.png")[0] == 1800
        loss, sum_r = drawn[0].axes
        assert [line.get_xydata().tolist() for line in loss.lines] == [  # type: ignore[union-attr]
            [[1, 3], [2, 2], [3, 1]],
            [[1, 4], [2, 2.5]],
        ]
        assert (loss.get_ylabel(), sum_r.get_ylabel()) == ("loss", "SumR")
        best = [line.get_xydata().tolist() for line in sum_r.lines[1::2]]  # type: ignore[union-attr]
        assert best == [[[2, 120]], [[2, 150]]]
        assert legend_of(drawn[0]) == ["base", "costs $5 or $6"]

    def test_a_missing_figure_has_no_panel(self, drawn: list[Figure], tmp_path: Path) -> None:
        plots.learning_curves({"base": [{"loss": 1.0}]}, tmp_path / "curves.png")
        assert len(drawn[0].axes) == 1

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting, match=r"\['loss', 'SumR'\].*\['base'\]"):
            plots.learning_curves({"base": [{"lr": 1.0}]}, tmp_path / "curves.png")


class TestStatedAndObserved:
    def test_lines(self, drawn: list[Figure], tmp_path: Path) -> None:
        lines = {"mine": {0.8: 0.75, 0.5: 0.55}, "theirs": {0.5: 0.5}}
        plots.stated_and_observed(lines, tmp_path / "shares.png", of="edges")
        (axes,) = drawn[0].axes
        points = [line.get_xydata().tolist() for line in axes.lines]  # type: ignore[union-attr]
        assert points[1:] == [[[0.5, 0.55], [0.8, 0.75]], [[0.5, 0.5]]]
        assert all(x == y for x, y in points[0])
        assert legend_of(drawn[0]) == ["equal", "mine", "theirs"]

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting, match="empty"):
            plots.stated_and_observed({}, tmp_path / "shares.png", of="edges")


class TestSimilarityHistograms:
    def test_panels(self, drawn: list[Figure], tmp_path: Path) -> None:
        within = {"base": torch.tensor([0.5, 0.7]), "MSC": torch.tensor([0.2])}
        across = {"base": torch.tensor([0.0, 0.1, 0.2]), "MSC": torch.tensor([0.1, 0.1])}
        plots.similarity_histograms(within, across, tmp_path / "histograms.png")
        assert size_of(tmp_path / "histograms.png")[0] == 1800
        assert [axes.get_title("left") for axes in drawn[0].axes] == ["base", "MSC"]
        assert [[text.get_text() for text in axes.texts] for axes in drawn[0].axes] == [
            ["0.10", "0.60"],
            ["0.10", "0.20"],
        ]
        assert legend_of(drawn[0]) == ["pairs of different videos", "pairs of one video"]
        assert drawn[0].axes[0].get_xlim() == drawn[0].axes[1].get_xlim()

    def test_equal_cosines(self, tmp_path: Path) -> None:
        plots.similarity_histograms({"a": torch.ones(3)}, {"a": torch.ones(2)}, tmp_path / "histograms.png")

    def test_bad_input(self, tmp_path: Path) -> None:
        with pytest.raises(BadBatch, match=r"\['a'\].*\['b'\]"):
            plots.similarity_histograms({"a": torch.ones(3)}, {"b": torch.ones(2)}, tmp_path / "histograms.png")
        with pytest.raises(BadBatch, match="'a' is empty"):
            plots.similarity_histograms({"a": torch.ones(0)}, {"a": torch.ones(2)}, tmp_path / "histograms.png")


class TestRelevanceCurve:
    TIMES = torch.tensor([0.5, 1.5, 2.5, 3.5])
    SCORES = torch.tensor([0.1, 0.2, 0.6, 0.3])
    SPANS = torch.tensor([[0.0, 2.0], [2.0, 4.0]])

    def test_everything(self, drawn: list[Figure], tmp_path: Path) -> None:
        title = "a kite that costs $5 or $6 rises " * 5
        plots.relevance_curve(
            self.TIMES,
            self.SCORES,
            self.SPANS,
            torch.tensor([0.15, 0.5]),
            (Moment(start=0.5, end=1.0), Moment(start=2.0, end=3.5)),
            title,
            tmp_path / "curve.png",
            predicted=Moment(start=2.0, end=4.0),
        )
        assert size_of(tmp_path / "curve.png")[0] == 1800
        assert legend_of(drawn[0]) == ["annotated moment", "clips", "frames", "predicted moment"]
        (axes,) = drawn[0].axes
        assert axes.get_xlim() == (0, 4)
        assert drawn[0].get_suptitle().replace("\n", " ") == title.strip()

    def test_no_moment(self, drawn: list[Figure], tmp_path: Path) -> None:
        path = str(tmp_path / "curve.png")
        plots.relevance_curve(self.TIMES, self.SCORES, self.SPANS, torch.tensor([0.15, 0.5]), (), "a kite", path)
        assert legend_of(drawn[0]) == ["clips", "frames"]


def test_global_settings_are_unchanged(tmp_path: Path) -> None:
    # As plain dictionaries: reading the backend through rcParams would choose one.
    before = dict(dict.items(mpl.rcParams))
    plots.learning_curves({"base": [{"loss": 1.0}, {"loss": 0.5}]}, tmp_path / "curves.png")
    assert dict(dict.items(mpl.rcParams)) == before


def test_matplotlib_is_imported_here_only_and_pyplot_nowhere() -> None:
    package = Path(plots.__file__).parent.parent
    imports = {
        path.relative_to(package).as_posix(): re.findall(
            r"^\s*(?:import|from) (matplotlib\S*.*)", path.read_text(), re.M
        )
        for path in package.rglob("*.py")
    }
    found = {path: lines for path, lines in imports.items() if lines}
    assert sorted(found) == ["evaluation/plots.py"]
    assert not any("pyplot" in line for line in found["evaluation/plots.py"])


BINS = reliability(np.array([0.1, 0.3, 0.9, 1.0]), np.array([False, True, True, True]), num_bins=2)


class TestConfidence:
    def test_a_reliability_diagram(self, drawn: list[Figure], tmp_path: Path) -> None:
        plots.reliability_diagram({"MSC": BINS}, tmp_path / "bins.png")
        assert size_of(tmp_path / "bins.png")[0] == 1800
        diagonal, line = drawn[0].axes[0].lines
        assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]  # type: ignore[union-attr]
        assert line.get_xydata().flatten().tolist() == pytest.approx([0.2, 0.5, 0.95, 1.0])  # type: ignore[union-attr]
        assert legend_of(drawn[0]) == ["stated = observed", "MSC"]

    def test_empty_bins_are_left_out(self, drawn: list[Figure], tmp_path: Path) -> None:
        bins = reliability(np.array([0.9]), np.array([True]), num_bins=2)
        plots.reliability_diagram({"MSC": bins}, tmp_path / "bins.png")
        assert drawn[0].axes[0].lines[1].get_xydata().tolist() == [[0.9, 1.0]]  # type: ignore[union-attr]

    def test_kept_queries_and_false_alarms(self, drawn: list[Figure], tmp_path: Path) -> None:
        curve = (np.array([0.5, 1.0]), np.array([0.1, 0.4]))
        plots.kept_and_false_alarms({"MSC": curve}, tmp_path / "kept.png", kept=0.95, false_alarms=0.1)
        line, target = drawn[0].axes[0].lines
        assert line.get_xydata().tolist() == [[50, 10], [100, 40]]  # type: ignore[union-attr]
        assert target.get_xydata().tolist() == [[95, 10], [100, 10]]  # type: ignore[union-attr]

    def test_no_curves(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting):
            plots.reliability_diagram({}, tmp_path / "bins.png")
        with pytest.raises(BadSetting):
            plots.kept_and_false_alarms({}, tmp_path / "kept.png", kept=0.95, false_alarms=0.1)


class TestClouds:
    def test_panels_with_groups_and_links(self, tmp_path: Path, drawn: list[Figure]) -> None:
        cloud = plots.Cloud(
            points=np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]),
            group_of_point=["video A", "video $B", "video A"],
            names=["1"],
            links=[(0, 1)],
        )
        plots.clouds({"before": cloud, "after": cloud, "later": cloud}, tmp_path / "clouds.png")
        (figure,) = drawn
        assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
        assert legend_of(figure) == ["the most similar pair", "video A", "video $B"]
        assert size_of(tmp_path / "clouds.png")[0] == 1800

    def test_no_panels(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting, match="panels"):
            plots.clouds({}, tmp_path / "clouds.png")
