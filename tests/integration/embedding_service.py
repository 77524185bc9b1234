"""An embeddings service on this machine that answers by script, for tests of the HTTP embedder."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory.embedding.hashing import HashingEmbedder
from memory.embedding.http import HttpEmbedder

KEY = "sk-test-0123456789abcdef"
MODEL = HashingEmbedder(8)
Make = Callable[..., HttpEmbedder]
Reply = Callable[["Handler", list[str]], None]


class Handler(BaseHTTPRequestHandler):
    """Records the request and lets the next reply of the script answer it."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            reply = self.server.script.pop(0) if self.server.script else self.server.otherwise
        reply(self, body["input"])

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.script: list[Reply] = []
        self.otherwise: Reply = good
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.stopping = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """Stay silent: clients that give up are the point of some tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def data(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": row.tolist()} for i, row in enumerate(MODEL.embed_documents(texts))]


def good(handler: Handler, texts: list[str]) -> None:
    handler.send(200, json.dumps({"data": data(texts)}).encode())


def fails(status: int, body: object = None, **headers: str) -> Reply:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler, _: handler.send(status, json.dumps(body).encode() if body else b"", named)


def answers(change: Callable[[list[dict[str, Any]]], Any]) -> Reply:
    """A good answer whose list of data was changed; the change returns a new list, or None for in place."""

    def reply(handler: Handler, texts: list[str]) -> None:
        entries = data(texts)
        entries = change(entries) or entries
        handler.send(200, json.dumps({"data": entries}).encode())

    return reply


def poisoned_by(word: str, status: int = 400, message: str = "This input is not acceptable") -> Reply:
    def reply(handler: Handler, texts: list[str]) -> None:
        if any(word in text for text in texts):
            handler.send(status, json.dumps({"error": {"message": message}}).encode())
        else:
            good(handler, texts)

    return reply


def drops_mid_body(handler: Handler, _: list[str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')
    handler.close_connection = True


def hangs_up(handler: Handler, _: list[str]) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def stays_silent(handler: Handler, _: list[str]) -> None:
    handler.server.stopping.wait(10)
    handler.close_connection = True


def drips(handler: Handler, _: list[str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _i in range(100):
        handler.wfile.write(b" ")
        if handler.server.stopping.wait(0.05):
            break
    handler.close_connection = True


@contextmanager
def running() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield service
        service.stopping.set()
        service.shutdown()
        thread.join()


@contextmanager
def maker(service: Service, waits: list[float]) -> Iterator[Make]:
    """Make embedders for the service that note their waits instead of waiting, and close them."""
    with ExitStack() as made:

        def make(**settings: Any) -> HttpEmbedder:
            defaults: dict[str, Any] = {"base_url": service.url, "api_key": KEY, "sleep": waits.append}
            embedder = HttpEmbedder("m", **{**defaults, **settings})
            made.callback(embedder.close)
            return embedder

        yield make
