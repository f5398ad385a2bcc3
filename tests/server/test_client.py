from pathlib import Path

import pytest

from midreel.server.client import Client, ServerProblem, Unreachable
from midreel.server.runner import listen
from midreel.server.schemas import JobState
from tests.server.conftest import Serving, World

SECRET = "a-token-of-some-length"


def test_the_client_covers_the_api(own: World, served: Serving, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    source = own.videos / "playhouse-test-00000.mp4"
    (inbox / "copy.mp4").write_bytes(source.read_bytes() + b"another")
    address = served(own, token=SECRET, roots=[inbox])
    with Client(address, token=SECRET) as client:
        best = client.search(own.queries[0].text, top=2).hits[0]
        assert best.start < best.end <= best.video.duration
        assert client.curve(best.video.id, own.queries[0].text).score == pytest.approx(best.score, abs=1e-4)
        assert client.search(own.queries[0].text, threshold=0).confident is True
        videos = list(client.videos())
        assert len(videos) == client.library().videos == 5
        assert client.thumbnail(best.video.id, best.peak).startswith(b"\xff\xd8")
        assert [each.file for each in client.quarantine()] == ["Videos/broken.mp4"]

        first = next(video for video in videos if video.file == source.name)
        client.download(first.id, tmp_path / "film.mp4")
        assert (tmp_path / "film.mp4").read_bytes() == source.read_bytes()

        *_, last = client.follow(client.index("inbox"))
        assert (last.state, last.added) == (JobState.DONE, 1)
        assert client.cancel(last).state == JobState.DONE  # too late
        assert [job.id for job in client.jobs()] == [last.id]

        client.remove(first.id)
        with pytest.raises(ServerProblem, match=first.id) as error:
            client.video(first.id)
        assert (error.value.problem.status, error.value.problem.type) == (404, "urn:midreel:problem:no-video")
        with pytest.raises(ServerProblem, match="404"):
            client.download(first.id, tmp_path / "film.mp4")
        assert (tmp_path / "film.mp4").read_bytes() == source.read_bytes()
    with Client(address) as stranger, pytest.raises(ServerProblem) as error:
        stranger.library()
    assert error.value.problem.type == "urn:midreel:problem:token-needed"


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        for ask in (client.library, lambda: client.download("x", tmp_path / "film.mp4")):
            with pytest.raises(Unreachable, match=rf"127.0.0.1:{port}"):
                ask()
