"""A plain git server over HTTP for the tests of the agent room: `git http-backend` behind a password, nothing else."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

USER = "bot"
TOKEN = "t0ken-of-the-bot-7f3a"


class GitServer:
    """Serves the bare repositories below `root`; every request needs USER and TOKEN."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Method, path with query, headers (lower-case names) of every request."""
        self.cut_push = False
        """Run the next push, then hang up without an answer."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def do_POST(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Tests read `seen`."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where repositories are: `{url}/name.git`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request: ask for the password, else hand it to the CGI program."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.command, request.path, headers))
        body = _body(request)
        expected = "Basic " + base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
        if headers.get("authorization") != expected:
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="tests"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        status, fields, content = self._cgi(request, headers, body)
        if self.cut_push and request.path.endswith("/git-receive-pack") and request.command == "POST":
            self.cut_push = False
            request.close_connection = True
            return
        request.send_response(status)
        for name, value in fields:
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _cgi(
        self, request: BaseHTTPRequestHandler, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        parts = urlsplit(request.path)
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=True,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "HOME": "/nonexistent",
                "PATH_INFO": parts.path,
                "QUERY_STRING": parts.query,
                "REQUEST_METHOD": request.command,
                "CONTENT_TYPE": headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
                "GIT_PROTOCOL": headers.get("git-protocol", ""),
                "REMOTE_USER": USER,
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        pairs = (field.partition(":") for field in head.decode().split("\r\n"))
        fields = [(name, value.strip()) for name, _, value in pairs]
        status = next((int(value.split()[0]) for name, value in fields if name.lower() == "status"), 200)
        return status, [(name, value) for name, value in fields if name.lower() != "status"], content


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """Whole, also when git sends it in chunks (large pushes)."""
    if request.headers.get("transfer-encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("content-length") or 0))
    pieces = []
    while size := int(request.rfile.readline(), 16):
        pieces.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(pieces)


def plain_git(cwd: Path, *arguments: str, stdin: str = "") -> str:
    """Git as a person or an agent runs it, with an identity; standard output, stripped."""
    who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in _PERSON}
    done = subprocess.run(
        ["git", *arguments],
        cwd=cwd,
        input=stdin,
        text=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **who},
    )
    assert done.returncode == 0, f"git {arguments}: {done.stderr}"
    return done.stdout.strip()


_PERSON = (("NAME", "Ada"), ("EMAIL", "ada@example.org"))


def seed(root: Path, name: str = "lamp") -> Path:
    """A bare repository below `root` with one commit on main: README, src/app.txt, a rule for ignored files."""
    bare = root / f"{name}.git"
    work = root / f"{name}.seed"
    plain_git(root, "init", "-q", "-b", "main", str(work))
    (work / "src").mkdir()
    (work / "README").write_text("a lamp\n")
    (work / "src" / "app.txt").write_text("off\n")
    (work / ".gitignore").write_text("*.o\n")
    plain_git(work, "add", ".")
    plain_git(work, "commit", "-qm", "Begin")
    plain_git(root, "clone", "-q", "--bare", str(work), str(bare))
    plain_git(bare, "config", "http.receivepack", "true")
    return bare
