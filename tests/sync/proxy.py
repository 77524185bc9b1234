"""A TCP proxy on 127.0.0.1 in front of a Postgres server on a Unix socket, that cuts and refuses for real."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 64 * 1024
_JOIN_SECONDS: Final = 10.0


class TcpProxy:
    """Passes bytes on between its clients and a server, until told otherwise. Threads end with ``close``."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._refusing = False
        self._closed = False
        self._left: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept, "proxy")

    @classmethod
    def before_postgres(cls, socket_directory: Path | str, port: int = 5432) -> Self:
        """In front of the server that listens in a directory."""
        return cls(Path(socket_directory) / f".s.PGSQL.{port}")

    def url(self, dbname: str, user: str = "postgres") -> str:
        """Of a database behind it."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{dbname}?sslmode=disable&gssencmode=disable"

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._pairs)

    def cut(self) -> None:
        """Break all open connections at once; new ones are accepted."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()

    def cut_after(self, count: int) -> None:
        """Break all open connections once so many more bytes have come from the server."""
        with self._lock:
            self._left = count

    def refuse(self, refusing: bool = True) -> None:
        """Break new connections before a byte has passed, or stop doing so."""
        with self._lock:
            self._refusing = refusing

    def close(self) -> None:
        """End every connection and thread. Idempotent."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def allowed(self, data: bytes) -> bytes:
        """What of the server's bytes may pass; fewer than all of them if it is time to cut."""
        with self._lock:
            if self._left is None:
                return data
            passed = data[: self._left]
            self._left = None if len(passed) < len(data) else self._left - len(data)
        return passed

    def gone(self, pair: _Pair) -> None:
        """A connection has ended."""
        with self._lock:
            self._pairs.discard(pair)

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                refused = self._refusing or self._closed
            server = None if refused else self._connect()
            if server is None:
                _reset(client)
                client.close()
                continue
            pair = _Pair(self, client, server)
            with self._lock:
                self._pairs.add(pair)
            self._start(pair.upwards, "proxy to the server")
            self._start(pair.downwards, "proxy from the server")

    def _connect(self) -> socket.socket | None:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(str(self._target))
        except OSError:
            server.close()
            return None
        return server


class _Pair:
    """One client and its connection to the server. The second of its two threads to end closes both sockets."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._lock = threading.Lock()
        self._running = 2

    def reset(self) -> None:
        """Break the connection: both ends see an error, or an end, at once."""
        with self._lock:
            if self._running:
                for end in (self._client, self._server):
                    _reset(end)

    def upwards(self) -> None:
        """Pass on what the client sends."""
        self._pass(self._client, self._server, counted=False)

    def downwards(self) -> None:
        """Pass on what the server sends."""
        self._pass(self._server, self._client, counted=True)

    def _pass(self, source: socket.socket, sink: socket.socket, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                passed = self._proxy.allowed(data) if counted else data
                sink.sendall(passed)
                if len(passed) < len(data):
                    self._proxy.cut()
                    break
        self.reset()
        with self._lock:
            self._running -= 1
            if self._running:
                return
            self._client.close()
            self._server.close()
        self._proxy.gone(self)


def _reset(end: socket.socket) -> None:
    """Make closing send a reset instead of a polite end, and wake whoever reads."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
