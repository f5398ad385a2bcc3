import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from midreel.errors import BadSetting
from midreel.library.catalogue import Catalogue
from midreel.library.searcher import Searcher
from midreel.server import runner
from tests.server.conftest import Serving, World
from tools.serving import address_of, start


def test_hosts_other_than_localhost_require_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(BadSetting, match=rf"{host} .*{runner.TOKEN}"):
            runner.expect_token(host, None)
        runner.expect_token(host, "a-token-of-some-length")
    for host in ("127.0.0.1", "::1", "localhost"):
        runner.expect_token(host, None)


def test_a_port_in_use_is_named() -> None:
    with runner.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadSetting, match=rf"{port} .*--port 0.*another midreel serve"):
            runner.listen("127.0.0.1", port)
    with pytest.raises(BadSetting, match=r"203\.0\.113\.77(?!.*another)"):
        runner.listen("203.0.113.77", 0)


def test_responses_are_sent_at_once(world: World, served: Serving) -> None:
    """Without TCP_NODELAY, a small response is delayed by 40 ms."""
    host, port = served(world).removeprefix("http://").split(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
        times = []
        for _ in range(9):
            before = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            times.append(time.perf_counter() - before)
    assert min(times) < 0.03


def test_the_page_url_has_the_token_in_its_fragment() -> None:
    assert runner.page_url("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert runner.page_url("::1", 80, None) == "http://[::1]:80/"
    assert runner.page_url("0.0.0.0", 80, "secret") == f"http://{socket.gethostname()}:80/#token=secret"


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from the file\n")
    monkeypatch.setenv(runner.TOKEN, "from the environment")
    assert runner.read_token(tmp_path / "token") == "from the file"
    assert runner.read_token(None) == "from the environment"
    monkeypatch.setenv(runner.TOKEN, "")
    assert runner.read_token(None) is None
    with pytest.raises(BadSetting, match=str(tmp_path)):
        runner.read_token(tmp_path)


def midreel_serve(library: Path, *words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return start(library, *words, stderr=subprocess.PIPE, env=environment)


def test_the_command_refuses_an_open_host_and_a_missing_library(own: World, tmp_path: Path) -> None:
    open_to_all = midreel_serve(own.library, "--host", "0.0.0.0")
    nowhere = midreel_serve(tmp_path / "nowhere")
    assert "expected a token" in open_to_all.communicate(timeout=60)[1]
    assert "does not exist" in nowhere.communicate(timeout=60)[1]
    assert (open_to_all.returncode, nowhere.returncode) == (1, 1)


def test_a_second_interrupt_still_waits_for_a_running_search(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    servers, found, real_server, real_search = list[runner.Server](), list[Any](), runner.Server, Searcher.search_all

    def watched(app: FastAPI) -> runner.Server:
        servers.append(real_server(app))
        return servers[0]

    def search_slowly(searcher: Searcher, *words: Any, **options: Any) -> Any:
        servers[0].should_exit = servers[0].force_exit = True  # as two signals do
        time.sleep(0.5)
        found.append(real_search(searcher, *words, **options))
        return found[-1]

    monkeypatch.setattr(runner, "Server", watched)
    monkeypatch.setattr(Searcher, "search_all", search_slowly)
    runner.serve(world.library, port=0, on_ready=lambda _: None)
    assert [len(hits) for hits in found] == [1]


@pytest.mark.slow
def test_a_shutdown_during_a_job_loses_no_work(own: World, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(12):
        (inbox / f"{number:02}.mp4").write_bytes(
            (own.videos / "playhouse-test-00000.mp4").read_bytes() + bytes([number])
        )
    with midreel_serve(own.library, "--root", str(inbox)) as process:
        address = address_of(process)
        body = json.dumps({"path": "inbox"}).encode()
        request = urllib.request.Request(f"{address}v1/index", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            job = json.load(answer)
        # A client that follows the job does not delay the shutdown.
        with urllib.request.urlopen(f"{address}v1/jobs/{job['id']}/events", timeout=60) as events:
            done = 0
            for line in events:
                if line.startswith(b"data:"):
                    done = json.loads(line[5:])["done"]
                if done >= 2:
                    break
            before = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        assert time.monotonic() - before < 20
        said = process.stderr.read() if process.stderr else ""
        assert "indexing inbox" in said
        assert "Traceback" not in said
    with closing(Catalogue(own.library)) as catalogue:
        kept = [path for path in catalogue.files() if path.parent == inbox]
    assert done <= len(kept)
    report = subprocess.run(
        [sys.executable, "-m", "midreel", "index", str(inbox), "--library", str(own.library), "--json"],
        capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    counts = json.loads(report.stdout)
    assert (counts["unchanged"], len(counts["new"])) == (len(kept), 12 - len(kept))
