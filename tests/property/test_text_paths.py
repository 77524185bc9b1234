"""Short cuts in making terms: the same as the long way, for every text."""

from __future__ import annotations

import sys
import unicodedata
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from memory.core import text as tokens
from memory.core.text import DocumentTerms, document_terms, query_terms
from tests.property.strategies import SLOW, texts

MANY = settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
WORDS = ("the", "running", "O'Brien", "don't", "snake_case", "2026-11-30", "x" * 100, "K9", "''", "nationalities")
ascii_texts = st.text(st.characters(max_codepoint=0x7F), max_size=80) | st.lists(
    st.sampled_from(WORDS) | st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=6), max_size=30
).map(" ".join)


def the_long_way(text: str) -> DocumentTerms:
    """Without the short cut for short ASCII texts, and without that for their pieces."""
    with patch.object(tokens, "_FAR_BELOW_LIMITS", -1), patch.object(tokens, "_pieces", pieces_the_long_way):
        return document_terms(text)


def pieces_the_long_way(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    folded = folded.replace("\u2019", "'")
    found: list[str] = tokens._PIECE.findall("".join(c for c in folded if unicodedata.category(c)[0] != "M"))
    return found


@MANY
@given(ascii_texts)
def test_a_short_ascii_text_has_the_terms_of_the_long_way(text: str) -> None:
    assert document_terms(text) == the_long_way(text)


@MANY
@given(texts(max_size=60) | ascii_texts)
def test_pieces_do_not_depend_on_the_way(text: str) -> None:
    assert tokens._pieces(text) == pieces_the_long_way(text)
    assert query_terms(text) == tuple(dict.fromkeys(tokens._words(pieces_the_long_way(text))))


def test_no_short_ascii_text_comes_near_the_limits() -> None:
    """The short cut is taken for texts of so few characters that neither limit can be reached."""
    worst = " ".join(f"{number:x}" for number in range(6_000))[: tokens._FAR_BELOW_LIMITS]
    found = document_terms(worst)
    assert len(found.terms) < tokens.MAX_TERMS
    assert sum(map(len, found.terms)) < tokens.MAX_TERM_BYTES
    assert found == the_long_way(worst)
    longer = worst + " " + " ".join(f"{number:x}" for number in range(6_000, 40_000))
    assert len(document_terms(longer).terms) == tokens.MAX_TERMS


def test_there_are_no_marks_and_no_unspaced_scripts_where_none_are_looked_for() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    marks = [c for c in characters if unicodedata.category(c)[0] == "M"]
    assert min(marks) >= "\u0300"
    assert all(tokens._pieces(f"q{mark}q") == pieces_the_long_way(f"q{mark}q") for mark in marks)
    unspaced = [c for c in characters if tokens._UNSPACED_START.match(c)]
    assert all(tokens._is_unspaced(c) for c in unspaced)
    assert min(unspaced) >= "\u0e00"
