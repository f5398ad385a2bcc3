import json

import pytest

from midreel.features import load_backbone
from midreel.features.backbones.base import BACKBONES
from midreel.features.backbones.known import KNOWN
from tests.conftest import Command


def test_every_kind_is_listed() -> None:
    assert {each.kind for each in KNOWN if each.kind} == set(BACKBONES)
    assert len({each.spec for each in KNOWN}) == len(KNOWN)


def test_the_widths_are_right() -> None:
    (tiny,) = [each for each in KNOWN if each.spec == "tiny-clip"]
    backbone = load_backbone("tiny-clip")
    assert (backbone.fingerprint.width, backbone.window) == (tiny.width, tiny.window)


def test_the_command(midreel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midreel.features.backbones.offline.installed", lambda: False)
    listed = json.loads(midreel("backbones", "--json").out)["backbones"]
    assert {"spec", "width", "languages", "licence", "installed"} <= set(listed[0])
    assert not next(each["installed"] for each in listed if each["spec"] == "offline")
    shown = midreel("backbones").out
    assert all(each.spec in shown for each in KNOWN)
    assert "midreel[offline]" in shown
