"""The model-free embedder, and the checks that all embedders share."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.core.errors import ConfigError, EmbeddingInvalid
from memory.core.ports import Embedder
from memory.embedding.checked import clean, floor_of, unit, unit_rows
from memory.embedding.hashing import HashingEmbedder

ODD_TEXTS = ["", " ", "\n", "!", "……", "🙂", "\0", "\ud800", "a\0b", "¿?", "\u200b", "x" * 5000]


def test_it_is_an_embedder() -> None:
    assert isinstance(HashingEmbedder(), Embedder)


def test_the_recipe_is_frozen_under_its_name() -> None:
    embedder = HashingEmbedder(8)
    assert embedder.name == "hashing-v1-8"
    vector = embedder.embed_query("Nightingale 夜莺!")
    assert vector.tobytes().hex() == GOLDEN


GOLDEN = "b25f1abf00000000b25f1abfb25f9a3e00000000b25f9a3e00000000b25f9abe"


def test_another_process_with_another_hash_seed_gives_the_same_bits() -> None:
    program = (
        "from memory.embedding.hashing import HashingEmbedder;"
        "print(HashingEmbedder(8).embed_query('Nightingale 夜莺!').tobytes().hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "12345", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == GOLDEN


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("我的项目叫什么？", "我的项目叫夜莺", "今天天气很好"),
        ("what is my project called", "my project is called Nightingale", "bananas are rich in potassium"),
        ("Müller wohnt in Köln", "MÜLLER, Köln", "bananas are rich in potassium"),
    ],
)
def test_similar_texts_are_nearer_than_unrelated_ones(question: str, near: str, far: str) -> None:
    embedder = HashingEmbedder()
    similar, unrelated = embedder.embed_documents([near, far]) @ embedder.embed_query(question)
    assert similar > unrelated + 0.2


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_gives_a_unit_vector(text: str) -> None:
    vector = HashingEmbedder().embed_query(text)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


@given(st.text(st.characters(exclude_categories=[]), max_size=60), st.integers(1, 9))
def test_no_text_gives_a_zero_vector_even_in_few_dimensions(text: str, dimension: int) -> None:
    vector = HashingEmbedder(dimension).embed_query(text)
    assert vector.shape == (dimension,)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


def test_rows_belong_to_their_texts() -> None:
    embedder = HashingEmbedder()
    rows = embedder.embed_documents(["a", "b", "a"])
    assert np.array_equal(rows[0], rows[2])
    assert np.array_equal(rows[1], embedder.embed_query("b"))


def test_no_text_gives_an_empty_array_of_the_right_width() -> None:
    empty = HashingEmbedder(16).embed_documents([])
    assert empty.shape == (0, 16)
    assert empty.dtype == np.float32


def test_the_name_can_be_chosen_and_the_dimension_must_be_positive() -> None:
    embedder = HashingEmbedder(name="other")
    embedder.close()
    embedder.close()
    assert (embedder.name, embedder.dimension, embedder.similarity_floor) == ("other", 64, 0.0)
    with pytest.raises(ConfigError, match="dimension"):
        HashingEmbedder(0)


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("plain 夜莺 🙂", "plain 夜莺 🙂"),
        ("a\0b", "a b"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("end\ud83d", "end\ufffd"),
        ("\ud83d\ude42", "🙂"),
        ("\udc00\ud800", "\ufffd\ufffd"),
    ],
)
def test_what_cannot_be_carried_is_replaced(dirty: str, cleaned: str) -> None:
    assert clean(dirty) == cleaned


@given(st.text(st.characters(exclude_categories=[])))
def test_cleaned_text_is_utf8_without_nul_and_stays_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert b"\0" not in cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "values",
    [
        [1.0, float("nan")],
        [1.0, float("inf")],
        [1.0, None],
        [0.0, 0.0],
        [],
        [[1.0], [2.0]],
        [[1.0], [2.0, 3.0]],
        ["a", "b"],
        [10**400, 1],
        1.0,
        None,
        {"a": 1},
    ],
)
def test_what_is_no_vector_is_refused_with_its_index(values: object) -> None:
    with pytest.raises(EmbeddingInvalid) as caught:
        unit(values, index=7)  # type: ignore[arg-type]
    assert caught.value.index == 7


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e30, 1e300])
def test_the_scale_of_a_vector_does_not_matter(scale: float) -> None:
    vector = unit([3 * scale, -4 * scale], index=0)
    assert vector.dtype == np.float32
    assert vector == pytest.approx([0.6, -0.8], abs=1e-3)


def test_ragged_rows_are_refused_with_the_index_of_the_first_odd_one() -> None:
    with pytest.raises(EmbeddingInvalid, match="3 dimensions, not 2") as caught:
        unit_rows([[1, 2], [1, 2], [1, 2, 3]], start=10)
    assert caught.value.index == 12


@pytest.mark.parametrize("floor", [-0.1, 1.0, float("nan")])
def test_a_floor_outside_its_range_is_refused(floor: float) -> None:
    with pytest.raises(ConfigError, match="similarity_floor"):
        floor_of(floor)
