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


def test_other_addresses_than_this_computers_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(
            BadSetting, match=rf"the host is {host}, which others can reach, expected a token.*MIDREEL_TOKEN"
        ):
            runner.expect_token(host, None)
        runner.expect_token(host, "a-token-of-some-length")
    for host in ("127.0.0.1", "::1", "localhost"):
        runner.expect_token(host, None)


def test_a_port_that_is_taken_is_named() -> None:
    with runner.listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        taken = rf"cannot listen on 127.0.0.1, port {port} .*perhaps another midreel serve.*--port 0 takes any"
        with pytest.raises(BadSetting, match=taken):
            runner.listening("127.0.0.1", port)
    with pytest.raises(BadSetting, match=r"cannot listen on 203.0.113.77(?!.*perhaps)"):
        runner.listening("203.0.113.77", 0)


def test_answers_are_sent_at_once(world: World, served: Serving) -> None:
    """Not after the 40 ms for which a system waits whether there is more to send."""
    host, port = served(world).removeprefix("http://").split(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
        times = []
        for _ in range(9):
            before = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            times.append(time.perf_counter() - before)
    assert min(times) < 0.03


def test_the_address_holds_the_token_where_browsers_keep_it_to_themselves() -> None:
    assert runner.address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert runner.address("::1", 80, None) == "http://[::1]:80/"
    assert runner.address("0.0.0.0", 80, "secret") == f"http://{socket.gethostname()}:80/#token=secret"


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from the file\n")
    monkeypatch.setenv(runner.TOKEN, "from the environment")
    assert runner.read_token(tmp_path / "token") == "from the file"
    assert runner.read_token(None) == "from the environment"
    monkeypatch.setenv(runner.TOKEN, "")
    assert runner.read_token(None) is None
    with pytest.raises(BadSetting, match="expected a file that holds the token"):
        runner.read_token(tmp_path)


def midreel_serve(library: Path, *words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return start(library, *words, stderr=subprocess.PIPE, env=environment)


def test_the_command_refuses_what_is_not_safe_or_not_there(own: World, tmp_path: Path) -> None:
    open_to_all = midreel_serve(own.library, "--host", "0.0.0.0")
    nowhere = midreel_serve(tmp_path / "nowhere")
    assert "expected a token" in open_to_all.communicate(timeout=60)[1]
    assert "is not a library" in nowhere.communicate(timeout=60)[1]
    assert (open_to_all.returncode, nowhere.returncode) == (1, 1)


def test_interrupted_twice_a_server_still_lets_a_search_end_before_it_closes_the_library(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, found, real_server, real_search = list[runner.Server](), list[Any](), runner.Server, Searcher.search_all

    def watched(app: FastAPI) -> runner.Server:
        servers.append(real_server(app))
        return servers[0]

    def slowly(searcher: Searcher, *words: Any, **options: Any) -> Any:
        servers[0].should_exit = servers[0].force_exit = True  # what the two signals do
        time.sleep(0.5)
        found.append(real_search(searcher, *words, **options))
        return found[-1]

    monkeypatch.setattr(runner, "Server", watched)
    monkeypatch.setattr(Searcher, "search_all", slowly)
    runner.serve(world.library, port=0, told=lambda _: None)
    assert [len(hits) for hits in found] == [1]


@pytest.mark.slow
def test_an_end_in_the_middle_of_a_job_loses_nothing_that_was_done(own: World, tmp_path: Path) -> None:
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
        # Somebody watches, and is not in the way of the end.
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
        assert "the server ends: indexing inbox ends after the videos in flight" in said
        assert "Traceback" not in said
    with closing(Catalogue(own.library)) as catalogue:
        kept = [path for path in catalogue.files() if path.parent == inbox]
    assert done <= len(kept)
    report = subprocess.run(
        [sys.executable, "-m", "midreel", "index", str(inbox), "--library", str(own.library), "--json"],
        capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told = json.loads(report.stdout)
    assert (told["unchanged"], len(told["new"])) == (len(kept), 12 - len(kept))
