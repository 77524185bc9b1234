"""A small Qdrant server on this machine: real HTTP in front of the client's own local engine, and faults on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel
from qdrant_client import QdrantClient, models

Body = dict[str, Any]
KEY = "qd-test-key"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: QdrantStub

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name in ("do_GET", "do_PUT", "do_POST", "do_DELETE"):
            return self.serve
        raise AttributeError(name)

    def serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault
        if fault is not None:
            fault(self)
            return
        if self.server.api_key not in (None, self.headers.get("api-key")):
            self.fail(401, "Must provide an API key or an Authorization bearer token")
            return
        route = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        with self.server.lock:
            self.server.requests.append((self.command, "/".join(route[2:]), json.loads(raw) if raw else {}))
            try:
                result = self.server.answer(self.command, route, json.loads(raw) if raw else {})
            except KeyError:
                self.fail(404, f"Not found: Collection `{route[1]}` doesn't exist!")
            except ValueError as error:
                self.fail(409 if "already exists" in str(error) else 400, f"Wrong input: {error}")
            else:
                self.send(200, json.dumps({"result": result, "status": "ok", "time": 0.0}).encode())

    def fail(self, status: int, words: str) -> None:
        self.send(status, json.dumps({"status": {"error": words}, "time": 0.0}).encode())

    def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class QdrantStub(ThreadingHTTPServer):
    """Holds its port from the beginning; refuses connections until ``start``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server_bind()
        self.engine = QdrantClient(":memory:")
        self.lock = threading.Lock()
        self.fault: Callable[[Handler], None] | None = None
        self.api_key: str | None = None
        self.requests: list[tuple[str, str, Body]] = []
        self.indexed: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        self.server_activate()
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()
        self.engine.close()

    def handle_error(self, *_: Any) -> None:
        """Stay silent: clients that give up are the point of some tests."""

    def answer(self, method: str, route: list[str], body: Body) -> Any:
        name, what = route[1], (method, *route[2:])
        if what == ("GET", "exists"):
            return {"exists": self.engine.collection_exists(name)}
        if what == ("PUT",):
            vectors = models.VectorParams(**body["vectors"])
            return self.engine.create_collection(name, vectors)
        if not self.engine.collection_exists(name):
            raise KeyError(name)
        if what == ("GET",):
            info = plain(self.engine.get_collection(name))
            return info | {"payload_schema": self.indexed.get(name, {})}
        if what == ("DELETE",):
            self.indexed.pop(name, None)
            return self.engine.delete_collection(name)
        if what == ("PUT", "index"):
            schema = body["field_schema"]
            kind = schema if isinstance(schema, str) else schema["type"]
            self.indexed.setdefault(name, {})[body["field_name"]] = {"data_type": kind, "points": 0}
            return {"operation_id": 1, "status": "completed"}
        return self.points(name, what, body)

    def points(self, name: str, what: tuple[str, ...], body: Body) -> Any:
        engine, payload = self.engine, body.get("with_payload", False)
        if what == ("PUT", "points"):
            return plain(engine.upsert(name, [models.PointStruct(**point) for point in body["points"]]))
        if what == ("POST", "points"):
            return [plain(p) for p in engine.retrieve(name, body["ids"], payload, body.get("with_vector", False))]
        where = models.Filter(**body["filter"]) if body.get("filter") else None
        if what == ("POST", "points", "query"):
            found = engine.query_points(
                name, body["query"]["nearest"], query_filter=where, limit=body["limit"], with_payload=payload
            )
            return {"points": [plain(point) for point in found.points]}
        if what == ("POST", "points", "scroll"):
            records, following = engine.scroll(
                name, where, limit=body["limit"], offset=body.get("offset"), with_payload=payload
            )
            return {"points": [plain(record) for record in records], "next_page_offset": following}
        if what == ("POST", "points", "count"):
            return {"count": engine.count(name, where).count}
        if what == ("POST", "points", "delete") and where is not None:
            return plain(engine.delete(name, models.FilterSelector(filter=where)))
        raise ValueError(f"not understood: {what}")


def plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json", exclude_none=True)


def answering(status: int, body: bytes = b"", kind: str = "application/json") -> Callable[[Handler], None]:
    """A fault: always this answer."""
    return lambda handler: handler.send(status, body, kind)


def saying(status: int, words: str) -> Callable[[Handler], None]:
    """A fault: always this refusal, in Qdrant's own form."""
    return lambda handler: handler.fail(status, words)


def hanging_up(handler: Handler) -> None:
    """A fault: the connection ends without an answer."""
    handler.close_connection = True


def silent(handler: Handler) -> None:
    """A fault: no answer for longer than anybody waits."""
    time.sleep(3)
    handler.close_connection = True
