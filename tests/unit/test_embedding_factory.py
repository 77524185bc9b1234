"""Which specification gives which embedder, and which are refused."""

from __future__ import annotations

import ast
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import memory.embedding
from memory.core.errors import ConfigError
from memory.embedding.factory import embedder_from, spec_of
from memory.embedding.hashing import HashingEmbedder
from memory.embedding.http import HttpEmbedder
from memory.embedding.local import LocalEmbedder


def test_the_bundled_model_is_the_default() -> None:
    assert isinstance(embedder_from(), LocalEmbedder)
    assert isinstance(embedder_from(" local "), LocalEmbedder)
    assert embedder_from("local", dimension=384, similarity_floor=0.7).similarity_floor == 0.7


@pytest.mark.parametrize(
    ("spec", "dimension", "expected"),
    [("hashing", None, 64), ("hashing:128", None, 128), ("hashing", 32, 32), ("hashing:32", 32, 32)],
)
def test_hashing_takes_its_dimension_from_either_place(spec: str, dimension: int | None, expected: int) -> None:
    embedder = embedder_from(spec, dimension=dimension)
    assert isinstance(embedder, HashingEmbedder)
    assert embedder.dimension == expected


def test_openai_takes_everything_after_the_first_colon_as_the_model() -> None:
    with closing(embedder_from("openai:bge-m3:latest", dimension=8, similarity_floor=0.3)) as embedder:
        assert isinstance(embedder, HttpEmbedder)
        assert (embedder.name, embedder.dimension, embedder.similarity_floor) == ("bge-m3:latest", 8, 0.3)


def test_openai_settings_reach_the_embedder() -> None:
    embedder = embedder_from(
        "openai:e5",
        api_key="k",
        base_url="https://models.example/v1/?api-version=1",
        dimension=8,
        request_dimensions=True,
        document_prefix="passage: ",
    )
    with closing(embedder):
        assert isinstance(embedder, HttpEmbedder)
        assert embedder.name == "e5@8+passage:"
        assert str(embedder._url) == "https://models.example/v1/embeddings?api-version=1"
        assert embedder._options["dimensions"] == 8


@pytest.mark.parametrize("spec", ["", "lokal", "OpenAI:x", "text-embedding-3-small", "http://x"])
def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"local, hashing\[:DIMENSION\], fastembed:MODEL, openai:MODEL"):
        embedder_from(spec)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("local:other", {}),
        ("openai:", {}),
        ("openai", {}),
        ("fastembed:", {}),
        ("hashing:many", {}),
        ("hashing:0", {}),
        ("hashing:²", {}),
        ("hashing:128", {"dimension": 64}),
        ("hashing", {"similarity_floor": 0.1}),
        ("local", {"dimension": 768}),
        ("local", {"similarity_floor": 1.0}),
        ("local", {"base_url": "http://localhost:11434/v1"}),
        ("local", {"document_prefix": "passage: "}),
        ("hashing", {"query_prefix": "query: "}),
        ("hashing", {"request_dimensions": True}),
        ("openai:m", {"request_dimensions": True}),
        ("openai:m", {"base_url": "localhost:11434"}),
        ("openai:m", {"base_url": "http://"}),
        ("openai:m", {"base_url": "http://[x"}),
        ("openai:m", {"batch_size": 0}),
        ("openai:m", {"timeout": 0.0}),
        ("openai:m", {"max_attempts": 0}),
        ("openai:m", {"max_wait": -1.0}),
        ("openai:m", {"dimension": 0}),
        ("openai:m", {"similarity_floor": -0.5}),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(spec: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        embedder_from(spec, **settings)


@pytest.mark.parametrize("key", ["sk-sécret", "sk-secret\n", "sk secret"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        embedder_from("openai:m", api_key=key)
    assert "cret" not in str(caught.value)


def test_a_key_set_for_something_else_does_not_disturb_the_bundled_model() -> None:
    assert isinstance(embedder_from("local", api_key="sk-for-the-llm"), LocalEmbedder)


def test_the_package_itself_imports_nothing() -> None:
    tree = ast.parse(Path(str(memory.embedding.__file__)).read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("spec", ["local", "hashing:64", "hashing:128", "openai:bge-m3:latest"])
def test_the_name_of_an_embedder_leads_back_to_its_specification(spec: str) -> None:
    embedder = embedder_from(spec)
    assert spec_of(embedder.name) == spec
    embedder.close()


def test_the_name_of_a_fastembed_model_leads_back_to_its_specification() -> None:
    assert spec_of("BAAI/bge-small-zh-v1.5@fastembed") == "fastembed:BAAI/bge-small-zh-v1.5"
