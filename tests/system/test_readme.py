"""The README does what it says: its code blocks run, its test command is the gate's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memory.config import MemoryConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_a_code_block_runs_as_it_stands(block: str, database_url: str, tmp_path: Path) -> None:
    environment = {"MEMORY_DATABASE_URL": database_url, "PATH": "", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "print(" in block:
        assert any(said in done.stdout for said in ("夜莺", "咖啡", "landlord"))


def test_the_settings_table_names_real_settings_with_their_defaults() -> None:
    table = README.split("| setting | default |")[1].split("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:]]
    defaults = {name: field.default for name, field in MemoryConfig.model_fields.items()}
    for names, shown in rows:
        parts = re.findall(r"`(\w+)`", names)
        assert parts
        for position, name in enumerate(parts):
            assert name in defaults
            value = shown.split(",")[position].strip().strip("`") if "," in shown else shown.strip().strip("`")
            if re.fullmatch(r"[\d.]+( s)?", value):
                assert float(value.removesuffix(" s")) == float(defaults[name])
            if value in ("true", "false"):
                assert defaults[name] is (value == "true")


def test_the_gate_runs_the_readmes_own_test_command() -> None:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in README.splitlines() if re.match(r"^python3 .*pytest", line)]
    assert len(commands) == 1
    assert "README.md" in gate
    assert 'bash -euo pipefail -c "$command"' in gate
