"""Processes of their own that have the modules of this project loaded already: loading takes most of a second."""

from __future__ import annotations

import multiprocessing

LOADED = multiprocessing.get_context("forkserver")
LOADED.set_forkserver_preload(["memory.cli.main", "tests.system.command", "tests.integration.edge.others"])
