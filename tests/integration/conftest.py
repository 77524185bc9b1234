"""Fixtures of the tests against a scripted embedding service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory.embedding.http import HttpEmbedder
from tests.integration.embedding_service import Make, Service, maker, running


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running() as started:
        yield started


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def make(service: Service, waits: list[float]) -> Iterator[Make]:
    with maker(service, waits) as make:
        yield make


@pytest.fixture
def embedder(make: Make) -> HttpEmbedder:
    return make(dimension=8)
