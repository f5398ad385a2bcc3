import base64
import io
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from PIL import Image

from midreel.library.hits import Hit, RelevanceCurve
from midreel.library.notebook import moment_rows
from midreel.ops.moments import ScoredMoment
from tests import zoo


@pytest.fixture
def hit(tmp_path: Path) -> Hit:
    path = zoo.film(tmp_path / "<i>beach & sea.mp4", zoo.at_rate(60))
    return Hit(
        video_id="f1",
        score=0.5,
        branch_scores={"frame": 0.5},
        path=path,
        paths=(path,),
        duration=5.0,
        moments=(
            ScoredMoment(start=1.0, end=2.5, score=0.5, peak=1.5),
            ScoredMoment(start=4.0, end=5.0, score=0.4, peak=4.5),
        ),
        curve=RelevanceCurve(times=(0.5, 1.5, 2.5, 3.5, 4.5), values=(0.1, 0.5, 0.2, 0.1, 0.4)),
        confidence=0.93,
    )


def parsed(hit: Hit) -> ElementTree.Element:
    """Return the HTML as XML, without the image."""
    return ElementTree.fromstring(re.sub("<img[^>]*>", "", hit._repr_html_()).replace("<br>", "<br/>"))


def test_a_hit_shows_frame_curve_and_link(hit: Hit) -> None:
    html = hit._repr_html_()
    data = re.search(r'<img alt="" src="data:image/jpeg;base64,([^"]+)">', html)
    assert data is not None
    with Image.open(io.BytesIO(base64.b64decode(data[1]))) as image:
        assert image.size == (zoo.WIDTH, zoo.HEIGHT)
        brightness = image.convert("L").getpixel((zoo.WIDTH // 2, zoo.HEIGHT // 2))
        assert brightness == pytest.approx(zoo.STEP * 18, abs=6)  # frame 18 is at 1.5 s, the peak
    root = parsed(hit)
    assert [link.get("href") for link in root.iter("a")] == [f"{hit.path.as_uri()}#t=1.00"]
    assert [link.text for link in root.iter("a")] == [hit.path.name]
    (svg,) = root.iter("svg")
    assert svg.get("role") == "img"
    assert len(list(svg.iter("rect"))) == 2
    (line,) = svg.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert min(points, key=lambda point: point[1])[0] == pytest.approx(96)  # 1.5 of 5 s, of 320 pixels
    assert "93%" in html


def test_a_missing_video_has_no_frame(hit: Hit, tmp_path: Path) -> None:
    gone = replace(hit, path=tmp_path / os.fsdecode(b"\xe9 & <b>.mp4"), moments=(), confidence=None)
    html = gone._repr_html_()
    assert "<img" not in html
    assert "<b>" not in html
    assert len(list(parsed(gone).iter("svg"))) == 1


def test_pandas_takes_hits(hit: Hit) -> None:
    frame = pd.DataFrame([hit, replace(hit, video_id="f2", confidence=None)])
    assert {"video_id", "path", "duration", "score", "confidence", "moments", "curve"} <= set(frame.columns)
    assert frame["score"].tolist() == [0.5, 0.5]
    assert frame["moments"][0][0]["start"] == 1.0
    rows = pd.DataFrame(moment_rows([hit, replace(hit, video_id="f2", confidence=None)]))
    assert rows[["rank", "video_id", "start", "end"]].values.tolist() == [
        [1, "f1", 1.0, 2.5],
        [1, "f1", 4.0, 5.0],
        [2, "f2", 1.0, 2.5],
        [2, "f2", 4.0, 5.0],
    ]
    assert rows["confidence"].isna().tolist() == [False, False, True, True]
