"""A search on this machine asks a server of the same library, and no other."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from midreel.errors import BadSetting
from midreel.library import serving
from midreel.library.catalogue import Catalogue
from midreel.library.layout import Layout
from tests.library.small import index


class Fake(BaseHTTPRequestHandler):
    """Answers as a server of some library does."""

    library, hits, status = "", list[Any](), 200

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"status": "ok", "library": self.library})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.status, {"hits": self.hits})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[tuple[str, type[Fake]]]:
    handler = type("Handler", (Fake,), {"hits": [], "library": "", "status": 200})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/", handler
        listening.shutdown()
        thread.join()


def test_a_note_lasts_as_long_as_the_server(tmp_path: Path) -> None:
    assert serving.noted(tmp_path) is None
    with serving.announced(tmp_path, "http://127.0.0.1:1/"):
        assert serving.noted(tmp_path) == "http://127.0.0.1:1/"
    assert not (tmp_path / serving.NOTE).exists()


def test_a_note_of_another_server_is_kept(tmp_path: Path) -> None:
    with serving.announced(tmp_path, "http://127.0.0.1:1/"):
        (tmp_path / serving.NOTE).write_text("another")
    assert (tmp_path / serving.NOTE).read_text() == "another"


def test_a_note_of_a_process_that_ended(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / serving.NOTE).write_text(json.dumps({"address": "http://127.0.0.1:1/", "process": ended.pid}))
    assert serving.noted(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"address": "x", "process": "y"}', '{"process": 1e99}', "\0"])
def test_a_damaged_note(tmp_path: Path, content: str) -> None:
    (tmp_path / serving.NOTE).write_text(content)
    assert serving.noted(tmp_path) is None


def test_a_folder_that_cannot_be_written_gets_no_note(tmp_path: Path) -> None:
    with serving.announced(tmp_path / "missing", "http://127.0.0.1:1/"):
        assert serving.noted(tmp_path / "missing") is None


def test_the_hits_of_a_server(videos: Path, library: Path, server: tuple[str, type[Fake]]) -> None:
    address, fake = server
    index(library, videos)
    fake.library = Layout(library).settings().id
    with closing(Catalogue(library)) as catalogue:
        video_id = min(catalogue.video_ids())
    moment = {"start": 1.0, "end": 2.0, "peak": 1.5, "score": 0.4}
    curve = {"times": [0.5, 1.5], "values": [0.1, 0.9]}
    fake.hits = [
        moment
        | {"video": {"id": video_id, "duration": 6.0}, "score": 0.5, "confidence": 0.7}
        | {"alternatives": [moment | {"start": 3.0, "end": 4.0}], "curve": curve}
    ]
    (hit,) = serving.ask(library, address, "red", top=3)
    assert hit.path.parent in (videos, videos / "trip")
    assert [(each.start, each.end) for each in hit.moments] == [(1, 2), (3, 4)]
    assert (hit.score, hit.confidence, hit.duration, hit.curve.values) == (0.5, 0.7, 6.0, (0.1, 0.9))
    for change in ({"library": "another"}, {"status": 503}, {"hits": [{}]}, {"hits": 3}):
        changed = {name: getattr(fake, name) for name in change}
        for name, value in change.items():
            setattr(fake, name, value)
        with pytest.raises(serving.NoServer):
            serving.ask(library, address, "red", top=3)
        for name, value in changed.items():
            setattr(fake, name, value)


@pytest.mark.parametrize(
    "address", ["http://example.com/", "https://127.0.0.1/", "ftp://localhost/", "127.0.0.1", "http://10.0.0.1/", ""]
)
def test_only_this_machine_is_asked(tmp_path: Path, address: str) -> None:
    with pytest.raises(serving.NoServer, match="this machine"):
        serving.ask(tmp_path, address, "red", top=3)


def test_a_port_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(serving.NoServer, match="midreel serve"):
        serving.ask(tmp_path, "http://127.0.0.1:1/", "red", top=3)


def test_options_that_a_server_does_not_take() -> None:
    serving.expect_simple(exact=False, filter=None)
    with pytest.raises(BadSetting, match="--exact"):
        serving.expect_simple(exact=True, filter=None)


def test_the_module_imports_no_numpy() -> None:
    code = "import sys, midreel.cli.served; print([n for n in ('numpy', 'jaxtyping', 'rich') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stderr
