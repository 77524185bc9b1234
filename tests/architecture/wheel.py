"""Builds the wheel and runs it outside the checkout: the migrations must be inside.

python -m tests.architecture.wheel
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "memory/py.typed",
    "memory/migrations/env.py",
    "memory/migrations/versions/central_0001_memories.py",
)


def main() -> None:
    """Build, look inside, and ask an unpacked copy for its schema revision."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            missing = set(NEEDED) - set(archive.namelist())
            if missing:
                raise SystemExit(f"the wheel lacks {', '.join(sorted(missing))}")
            archive.extractall(Path(folder) / "unpacked")
        ask = "import memory; from memory.postgres import migrations as m; print(memory.__file__, m.head())"
        answer = subprocess.run(
            [sys.executable, "-c", ask],
            cwd=Path(folder) / "unpacked",
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        if not answer.startswith(folder) or "central_" not in answer:
            raise SystemExit(f"the wheel does not stand alone: {answer}")
    sys.stdout.write(f"{wheel.name}: complete\n")


if __name__ == "__main__":
    main()
