"""The keeper: a small process that owns the embedded Postgres server and stops it after its last holder.

Started by ``EmbeddedServer`` as ``python -I -S keeper.py LOCK OWNER DIRECTORY SOCKETS POSTGRES ARGUMENT…``.
It runs as a plain script, so it imports the standard library only.

Who is alive is answered by three ``flock`` files in ``DIRECTORY/control``, because the kernel gives such a
lock back however its owner ends, where a process id would have to be trusted:

- ``holders.lock``: shared by everyone who uses the server; the keeper waits for it exclusively, and getting
  it means that nobody is left.
- ``keeper.lock``: the keeper's own; taken by whoever starts the keeper and handed to it open.
- ``server.lock``: inherited by the postmaster and all its children, so it is free exactly when no process
  of the server is left, even when the postmaster alone was killed, and in whatever container it ran.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

if sys.platform != "win32":  # importable everywhere; only EmbeddedServer says what is not supported
    import fcntl

# Nothing of the first opener's environment: the server outlives it, and is shared with others.
# PG… variables would also change settings, and macOS needs a valid LC_ALL.
SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

# A server that crashes at once is started again this often; one that never became ready is not.
QUICK_CRASHES = 3
QUICK_S = 10.0

# A fast shutdown writes a checkpoint; only one that hangs takes this long. Then leave the rest to recovery.
FAST_SHUTDOWN_S = 120.0

POSTMASTER_FILE = "postmaster.pid"


def open_lock(path: str | Path) -> int:
    """Open a lock file, creating it; the descriptor does not survive an exec."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, mode: int) -> bool:
    """Take a lock if that is possible at once."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class PostmasterFile(NamedTuple):
    """What a postmaster writes about itself into its data directory; it may be stale."""

    pid: int
    socket_directory: str
    ready: bool

    @classmethod
    def read(cls, data: Path) -> PostmasterFile | None:
        """Read the file, which grows line by line during a start; None while there is none."""
        try:
            lines = os.fsdecode((data / POSTMASTER_FILE).read_bytes()).split("\n") + [""] * 8
            return cls(abs(int(lines[0])), lines[4], lines[7].strip() == "ready")
        except (FileNotFoundError, ValueError):
            return None


def exists(pid: int) -> bool:
    """Whether the id belongs to a process, even one that has ended and that nobody has asked about yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def serves(pid: int, data: Path) -> bool:
    """Whether this process is the living postmaster of the data directory."""
    if Path("/proc/self/comm").exists():
        process = Path("/proc") / str(pid)
        try:
            # The postmaster changes into its data directory, which no other postgres may share.
            name = (process / "comm").read_text(errors="replace").strip()
            return name == "postgres" and (process / "cwd").samefile(data)
        except OSError:
            return False
    listing = subprocess.run(  # noqa: S603 - fixed program, our own number
        ["/bin/ps", "-o", "comm=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return Path(listing.stdout.strip()).name == "postgres"


class Server:
    """The postmaster, either a child of this process or one that a killed keeper left behind."""

    def __init__(self, directory: Path, sockets: Path) -> None:
        self.data = directory / "data"
        self.sockets = sockets
        self.lock = open_lock(directory / "control" / "server.lock")
        self.child: subprocess.Popen[bytes] | None = None

    def launch(self, command: list[str], user: int | None, group: int | None) -> bool:
        """Start the postmaster; False when a server, or what is left of one, is still alive."""
        if not try_lock(self.lock, fcntl.LOCK_EX):
            return False
        self._drop_stale_files()
        self.child = subprocess.Popen(  # noqa: S603 - our own binary, arguments as a list
            command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=SERVER_ENVIRONMENT,
            pass_fds=(self.lock,),
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        return True

    def _drop_stale_files(self) -> None:
        """Remove what a killed postmaster left when its process id is in use again, or a zombie's.

        Postgres would take either for a running postmaster. The first happens when a container restarts, the
        second in one whose first process does not collect the dead. The postmaster file of a process that is
        gone stays, as Postgres learns from it which shared memory to check for survivors; and all of it stays
        when somebody has started a server by hand.
        """
        stale = PostmasterFile.read(self.data)
        if stale is not None and serves(stale.pid, self.data):
            return
        for socket_lock in self.sockets.glob(".s.PGSQL.*.lock"):
            socket_lock.unlink(missing_ok=True)
        if stale is not None and exists(stale.pid):
            (self.data / POSTMASTER_FILE).unlink(missing_ok=True)

    def wait(self) -> None:
        """Return when the server has ended."""
        if self.child is not None:
            self.child.wait()
        else:
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def signal(self, number: int) -> None:
        """Send a signal to the postmaster, if it is certain which process that is."""
        if self.child is not None:
            self.child.send_signal(number)
            return
        written = PostmasterFile.read(self.data)
        if written is not None and serves(written.pid, self.data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(written.pid, number)

    def close(self) -> None:
        """Let go of the lock file; a running server keeps its own hold."""
        os.close(self.lock)


class Keeper:
    """Runs the server for as long as somebody holds it.

    Two threads wait, one for the holders to be gone and one for the server to end; the main thread
    acts on what they report. Nothing is polled, so an idle keeper costs no time.
    """

    def __init__(self, directory: Path, sockets: Path, command: list[str], user: int | None, group: int | None) -> None:
        self._directory = directory
        self._sockets = sockets
        self._command = command
        self._user = user
        self._group = group
        self._holders = open_lock(directory / "control" / "holders.lock")
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._quick_crashes = 0

    def run(self) -> int:
        """Keep the server until nobody holds it, or it ends in a way that a restart would not cure."""
        # An ignored SIGCHLD would be inherited, and then nobody learns how the server ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: self._events.put("terminated"))
        self._report(lambda: fcntl.flock(self._holders, fcntl.LOCK_EX), "abandoned")
        while True:
            server = Server(self._directory, self._sockets)
            started = time.monotonic()
            server.launch(self._command, self._user, self._group)
            self._report(server.wait, "exited")
            abandoned = self._events.get() != "exited"
            if abandoned:
                self._stop(server)
            # Before the keeper's own lock goes: a server's lock without a keeper means a server to adopt.
            server.close()
            if abandoned:
                return 0
            if not self._worth_restarting(server, time.monotonic() - started):
                return 1

    def _worth_restarting(self, server: Server, lived_s: float) -> bool:
        if server.child is None:
            return True  # left behind by another keeper, perhaps in the middle of its shutdown
        if server.child.returncode == 0:
            return False  # somebody shut it down on purpose
        self._quick_crashes = self._quick_crashes + 1 if lived_s < QUICK_S else 0
        written = PostmasterFile.read(server.data)
        was_ready = written is not None and written.ready and written.pid == server.child.pid
        return was_ready and self._quick_crashes <= QUICK_CRASHES

    def _report(self, wait: Callable[[], None], event: str) -> None:
        def report() -> None:
            wait()
            self._events.put(event)

        threading.Thread(target=report, daemon=True).start()

    def _stop(self, server: Server) -> None:
        # Signals repeat because a postmaster that is just starting may not have written its file yet.
        deadline = time.monotonic() + FAST_SHUTDOWN_S
        while True:
            server.signal(signal.SIGINT if time.monotonic() < deadline else signal.SIGQUIT)
            patience = time.monotonic() + 1.0
            while (remaining := patience - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    if self._events.get(timeout=remaining) == "exited":
                        return


def main(arguments: list[str]) -> int:
    """Detach from the process that started us, then keep the server."""
    lock, owner, directory, sockets, *command = arguments
    if os.fork():
        os._exit(0)  # the caller waits for this process only, and no parent is left with a zombie
    os.set_inheritable(int(lock), False)
    user, group = (int(number) for number in owner.split(":")) if owner else (None, None)
    try:
        return Keeper(Path(directory), Path(sockets), command, user, group).run()
    finally:
        with contextlib.suppress(OSError):
            Path(sockets).rmdir()
        # Unlocking, not just closing: a descriptor that leaked into a forked process must not keep the lock.
        # And before the holders' lock goes, so that the next opener never sees a keeper that is about to end.
        fcntl.flock(int(lock), fcntl.LOCK_UN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
