"""Where the migrations are, for both databases: one Alembic environment with a branch for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from alembic.config import Config
from alembic.script import ScriptDirectory

from memory.core.errors import Unsupported

_PACKAGE: Final = Path(__file__).resolve().parents[1]


def script_location() -> Path:
    """Where the migrations are: inside the wheel, or beside the package in a checkout.

    Raises:
        Unsupported: nowhere.
    """
    for place in (_PACKAGE / "migrations", _PACKAGE.parent / "alembic"):
        if (place / "env.py").is_file():
            return place
    raise Unsupported("the migrations are missing from this installation", hint="install nightingale-memory again")


@dataclass(frozen=True)
class Branch:
    """The migrations of one database: ``central`` or ``edge``."""

    name: str
    location: Path

    def config(self) -> Config:
        """What an Alembic command needs."""
        config = Config()
        config.set_main_option("script_location", str(self.location).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        config.set_main_option("version_locations", str(self.location / "versions").replace("%", "%%"))
        return config

    @property
    def target(self) -> str:
        """The newest revision in Alembic's words; plain ``heads`` would be those of both databases."""
        return f"{self.name}@head"

    @cached_property
    def head(self) -> str:
        """The revision that this program works with."""
        heads = [script for script in self._scripts.get_revisions("heads") if self.name in script.branch_labels]
        return heads[0].revision

    @cached_property
    def known(self) -> frozenset[str]:
        """Every revision this program has heard of."""
        return frozenset(script.revision for script in self._scripts.walk_revisions())

    @property
    def _scripts(self) -> ScriptDirectory:
        return ScriptDirectory.from_config(self.config())
