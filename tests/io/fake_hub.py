"""A small model hub on this computer, with the routes that uploads and downloads of models need.

Every file is committed inline, as small files are on the real hub.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_fake_token"


class FakeHub(ThreadingHTTPServer):
    """Repositories by id: the files of each, and the ids that are private. `requests` lists what clients asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str) -> str:
        """Return the hash of the current files of a repository."""
        found = hashlib.sha1()
        for name, content in sorted(self.files[repo].items()):
            found.update(name.encode() + content)
        return found.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is BaseHTTPRequestHandler's
        self.server.requests.append(f"{self.command} {self.path}")

    def _send(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self) -> None:
        body, path = self._body(), unquote(urlsplit(self.path).path)
        if path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."}, X_Error_Message="Invalid credentials")
            return
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.server.files.setdefault(repo, {})
            if asked.get("private") or asked.get("visibility") == "private":
                self.server.private.add(repo)
            self._send(200, {"url": f"{self.server.address}/{repo}", "name": repo})
            return
        repo, _, action = path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        if action == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for each in json.loads(body)["files"]
            ]
            self._send(200, {"files": files})
        elif action == "commit":
            for line in filter(None, body.splitlines()):
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            commit = self.server.commit(repo)
            url = f"{self.server.address}/{repo}/commit/{commit}"
            self._send(200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})
        else:
            self._send(404, {"error": path})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            parts = path.removeprefix("/api/models/").split("/")
            repo, rest = "/".join(parts[:2]), parts[2:]
            if repo not in self.server.files:
                self._missing("RepoNotFound")
            elif rest[:1] == ["tree"]:
                files = self.server.files[repo].items()
                self._send(200, [{"type": "file", "path": n, "size": len(c), "oid": _etag(c)} for n, c in files])
            else:
                siblings = [{"rfilename": name} for name in self.server.files[repo]]
                self._send(
                    200,
                    {
                        "id": repo,
                        "modelId": repo,
                        "sha": self.server.commit(repo),
                        "siblings": siblings,
                        "private": repo in self.server.private,
                        "tags": [],
                        "downloads": 0,
                        "likes": 0,
                    },
                )
            return
        repo, _, place = path.strip("/").partition("/resolve/")
        content = self.server.files.get(repo, {}).get(place.partition("/")[2])
        if content is None:
            self._missing("EntryNotFound")
            return
        self._send(200, content, ETag=f'"{_etag(content)}"', X_Repo_Commit=self.server.commit(repo))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _missing(self, code: str) -> None:
        self._send(404, {"error": code}, X_Error_Code=code, X_Error_Message=code)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running() -> Iterator[FakeHub]:
    """Run a hub in a thread."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
