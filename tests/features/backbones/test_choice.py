import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from midreel.errors import BadPackage, UnknownName
from midreel.features.backbones import choice, offline


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No default in the environment, an empty cache, and a hub that does not answer."""
    monkeypatch.delenv(choice.VARIABLE)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, "local-dir:/models/clip")
    assert choice.default_backbone() == "local-dir:/models/clip"


def test_a_cached_clip_is_chosen(tiny_clip: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / f"models--{choice.HUB.replace('/', '--')}"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text("0" * 40)
    shutil.copytree(tiny_clip, snapshot / "snapshots" / ("0" * 40))
    assert choice.default_backbone() == choice.HUB


@pytest.mark.parametrize(("status", "answers"), [(200, True), (403, False), (404, False)])
def test_a_hub_answers(status: int, answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(status) as (address, asked):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        assert choice.hub_answers("me/clip") is answers
    assert asked == ["/me/clip/resolve/main/config.json"]


def test_no_hub_is_asked_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the hub was asked"))
    assert not choice.hub_answers("me/clip")


def test_without_a_hub_the_offline_backbone_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "installed", lambda: True)
    assert choice.default_backbone() == "offline"


def test_a_hub_that_breaks_off_does_not_stop_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: str, *, download: bool = True) -> Path:
        raise UnknownName("the download broke off")

    monkeypatch.setattr(choice, "hub_answers", lambda _: True)
    monkeypatch.setattr(choice, "hub_folder", refuse)
    monkeypatch.setattr(offline, "installed", lambda: True)
    assert choice.default_backbone() == "offline"


def test_without_both_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "installed", lambda: False)
    with pytest.raises(BadPackage, match=r"midreel\[offline\]"):
        choice.default_backbone()


def test_a_new_library_never_gets_tiny_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from midreel import Searcher

    monkeypatch.setattr(offline, "installed", lambda: False)
    with pytest.raises(BadPackage):
        Searcher.create(tmp_path / "library")
    assert not (tmp_path / "library" / "library.json").exists()
