"""Tokens: the same everywhere and for every spelling of a text, so that what is written is found again."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memory.core import text as tokens
from memory.core.text import (
    MAX_QUERY_TERMS,
    MAX_TERM_BYTES,
    MAX_TERM_LENGTH,
    MAX_TERMS,
    STOP_WORDS,
    document_terms,
    query_terms,
)
from tests.property.strategies import (
    ALPHABET,
    SLOW,
    texts,
)

MANY = settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
CASED = "abcxyzABCXYZ0123456789 '-éèüßñçøæœşğЁёИванжЖΑαλΣσςΩΐΰǰŉǄǅ"
"""Letters whose upper and lower case are one another's; the dotless i is no i."""
UNSPACED = "我喜欢喝咖啡夜莺项目代号猫咪𠮷々コーヒーが好きぁっヴ커피를좋아해요한글สวัสดกาแฟลาวខ្មែរမြန်မာ"
unspaced = st.text(st.sampled_from(UNSPACED), min_size=1, max_size=20)


def terms(text: str) -> frozenset[str]:
    return document_terms(text).terms


def finds(query: str, text: str) -> bool:
    """Whether the whole of a question is found in a text."""
    asked = query_terms(query)
    return bool(asked) and terms(text).issuperset(asked)


@MANY
@given(texts(max_size=60))
def test_a_text_is_found_by_itself(text: str) -> None:
    assert terms(text).issuperset(query_terms(text))


@MANY
@given(texts(max_size=40), texts(max_size=40))
def test_a_text_is_found_among_others_of_the_same_memory(text: str, other: str) -> None:
    assert terms(f"{other}\n{text}\n{other}").issuperset(query_terms(text))


@MANY
@given(texts(max_size=60))
def test_every_form_of_the_same_characters_gives_the_same_terms(text: str) -> None:
    expected = document_terms(text)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert document_terms(unicodedata.normalize(form, text)) == expected


@MANY
@given(st.text(st.sampled_from(CASED), max_size=40))
def test_upper_and_lower_case_give_the_same_terms(text: str) -> None:
    expected = document_terms(text)
    assert document_terms(text.upper()) == document_terms(text.lower()) == expected
    assert query_terms(text.upper()) == query_terms(text)


@MANY
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40))
def test_full_width_and_ordinary_characters_give_the_same_terms(text: str) -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if c > " " else "\u3000" for c in text)
    assert document_terms(wide) == document_terms(text)


@MANY
@given(texts(max_size=60))
def test_terms_are_short_without_white_space_and_in_order_of_appearance(text: str) -> None:
    asked = query_terms(text)
    assert len(set(asked)) == len(asked) <= MAX_QUERY_TERMS
    for term in terms(text) | set(asked):
        assert term
        assert len(term) <= MAX_TERM_LENGTH
        assert not any(c.isspace() or c == "\0" for c in term)


@MANY
@given(texts(max_size=40), texts(max_size=40))
def test_terms_of_a_line_do_not_depend_on_the_lines_around_it(text: str, other: str) -> None:
    joined = document_terms(f"{text}\n{other}")
    assert joined.terms == terms(text) | terms(other)
    assert joined.length == document_terms(text).length + document_terms(other).length


@MANY
@given(unspaced, st.data())
def test_any_part_of_a_text_written_without_spaces_is_found(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))]
    assume(query_terms(part))
    assert finds(part, text)
    assert finds(part, f"today: {text}!")


@MANY
@given(unspaced)
def test_the_length_counts_occurrences(text: str) -> None:
    once = document_terms(text).length
    assert document_terms(f"{text} {text} {text}").length == 3 * once
    assert terms(f"{text} {text}") == terms(text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("咖啡", "我喜欢喝咖啡"),
        ("喜欢", "我喜欢喝咖啡"),
        ("猫", "我家的猫咪叫小白"),
        ("咪", "猫咪"),
        ("夜莺", "项目代号叫夜莺，下周五交付第一版"),
        ("コーヒー", "コーヒーが好き"),
        ("ｺｰﾋｰ", "コーヒーが好き"),
        ("が", "コーヒーが好き"),
        ("커피", "커피를 좋아해요"),
        ("좋아", "커피를 좋아해요"),
        ("กาแฟ", "ฉันชอบดื่มกาแฟ"),
        ("हिन्दी", "मैं हिन्दी बोलता हूँ"),
        ("kaffee", "Ich trinke KAFFEE"),
        ("STRASSE", "Meine Straße"),
        ("Müller", "mu\u0308ller wohnt hier"),
        ("Ёлка", "ёлка"),
        ("Ｎｉｇｈｔｉｎｇａｌｅ", "nightingale"),
        ("GPT4模型", "我们用GPT4模型"),
        ("手机", "iPhone手机壳"),
        ("iphone", "iPhone手机壳"),
        ("2026", "on 2026-11-30"),
        ("½", "1⁄2 cup"),
        ("case", "snake_case"),
        ("𠮷", "𠮷野家"),
        ("☕", "time for ☕️ now"),
        ("🦜", "a 🦜 on the roof"),
        ("⭐", "five ⭐⭐⭐⭐⭐"),
        ("⌚", "my ⌚"),
        ("🇨🇳", "made in 🇨🇳"),
        ("👍", "👍🏽"),
        ("👩", "👨‍👩‍👧"),
        ("❤", "❤️"),
        ("🆗", "all 🆗"),
        ("O'Brien", "Mr O\u2019Brien called"),
        ("nightingale", "the nightingale's song"),
        ("nightingale's", "the nightingale sings"),
        ("l'amour", "L\u2019AMOUR"),
        ("dogs", "the dogs' kennel"),
        ("quoted", "a 'quoted' word"),
    ],
)
def test_a_word_is_found_in_a_text(query: str, text: str) -> None:
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("咖啡", "咖喱和啤酒"),
        ("茶", "我喜欢喝咖啡"),
        ("咖啡", "コーヒーが好き"),
        ("tea", "team"),
        ("ion", "station"),
        ("🦜", "🐦"),
        ("1234", "123456"),
    ],
)
def test_a_word_is_not_found_where_it_is_not(query: str, text: str) -> None:
    assert not finds(query, text)


@pytest.mark.parametrize("form", ["run", "runs", "running", "RUNNING"])
@pytest.mark.parametrize("other", ["run", "runs", "running"])
def test_english_words_are_found_in_their_other_forms(form: str, other: str) -> None:
    assert finds(form, f"I went {other} today")


@pytest.mark.parametrize("word", sorted(STOP_WORDS))
def test_a_stop_word_is_no_term(word: str) -> None:
    for spelling in (word, word.upper(), word.replace("'", "\u2019")):
        assert document_terms(spelling) == (frozenset(), 0)
        assert query_terms(spelling) == ()


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "。，！", "...", "'", "''", "_", "\u200b", "\u0301", "\ufe0f", "\0", "\ud800"]
)
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert document_terms(text) == (frozenset(), 0)
    assert query_terms(text) == ()


def test_terms_are_frozen_under_the_version_that_stores_hold() -> None:
    assert query_terms("My project is called Nightingale; 项目代号叫夜莺 ☕ コーヒー 2026!") == (
        *("project", "call", "nightingal"),
        *("项目", "目代", "代号", "号叫", "叫夜", "夜莺"),
        *("☕", "コー", "ーヒ", "ヒー", "2026"),
    )
    assert document_terms("猫咪 cats") == (frozenset({"猫咪", "猫", "咪", "cat"}), 2)


def test_of_a_megabyte_of_distinct_words_the_first_ones_are_kept() -> None:
    words = [f"w{number:x}z" for number in range(160_000)]
    text = " ".join(words)
    assert len(text) > 1_100_000
    kept = document_terms(text)
    assert len(kept.terms) == MAX_TERMS
    assert kept.length == len(words)
    assert kept.terms == terms(" ".join(words[:MAX_TERMS]))
    assert sum(len(term.encode()) for term in kept.terms) <= MAX_TERM_BYTES


def test_terms_of_many_bytes_are_bounded_by_bytes() -> None:
    words = [f"{number:05}" + "я" * 59 for number in range(6_000)]
    kept = terms(" ".join(words))
    size = sum(len(term.encode()) for term in kept)
    assert MAX_TERM_BYTES - 4 * MAX_TERM_LENGTH < size <= MAX_TERM_BYTES
    assert words[0] in kept


def test_of_a_megabyte_of_chinese_the_first_pairs_are_kept() -> None:
    text = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(400_000))
    kept = document_terms(text)
    assert len(kept.terms) == MAX_TERMS
    assert kept.length == len(text) - 1
    assert text[:2] in kept.terms


@pytest.mark.parametrize("letter", ["x", "é", "ж", "1"])
def test_a_word_of_a_megabyte_is_known_by_its_beginning(letter: str) -> None:
    text = letter * 1_000_000
    assert terms(text) == frozenset(query_terms(text))
    assert document_terms(text).length == 1
    (term,) = terms(text)
    assert term == letter * MAX_TERM_LENGTH


def test_two_long_words_with_one_beginning_are_one_term() -> None:
    start = "k" * MAX_TERM_LENGTH
    assert finds(f"{start}abc", f"the key {start}xyz")


def test_a_question_has_a_bounded_number_of_terms_and_the_first_ones_count() -> None:
    words = [f"w{number}z" for number in range(500)]
    assert query_terms(" ".join(words)) == tuple(words[:MAX_QUERY_TERMS])


def test_threads_get_the_same_terms_as_one_alone() -> None:
    words = ["running", "nationalities", "generously", "夜莺咖啡", "sky's", "bananas", "happily", "İstanbul"]
    sample = [f"{word} {word}{ALPHABET[i % 26]}ing {word}{i}s" for i in range(400) for word in words]
    tokens._stem.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [document_terms(text) for text in sample], range(8)))
    tokens._stem.cache_clear()
    assert found == [[document_terms(text) for text in sample]] * 8
