"""Words for lexical search: the same at the centre, at the edge and in memory, so the same order everywhere.

NFKC, case folded. Words of letters and digits: English stop words dropped, then the Snowball English stemmer
(which leaves words of other languages mostly alone). Runs of scripts written without spaces (Han, kana,
Hangul, Thai, Lao, Khmer, Burmese) become overlapping pairs of characters. Emoji count as words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

import snowballstemmer

MAX_TERM_LENGTH: Final = 64
"""Longer words (keys, base64) are known by their beginning."""
MAX_TERMS: Final = 16_384
MAX_TERM_BYTES: Final = 512 * 1024
"""Distinct terms of one text; far below the 1 MB that a Postgres tsvector can hold."""
MAX_QUERY_TERMS: Final = 128

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_EMOJI = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_PIECE = re.compile(rf"[{_UNSPACED}]+|[{_EMOJI}]|[^\W_{_UNSPACED}]+(?:'[^\W_{_UNSPACED}]+)*")
_UNSPACED_START = re.compile(f"[{_UNSPACED}]")

STOP_WORDS: Final = frozenset(
    """
    a about above after again against all am an and any are aren't as at be because been before being below
    between both but by can can't cannot could couldn't d did didn't do does doesn't doing don don't down during
    each few for from further had hadn't has hasn't have haven't having he he'd he'll he's her here here's hers
    herself him himself his how how's i i'd i'll i'm i've if in into is isn't it it's its itself just let's ll
    me more most mustn't my myself no nor not now o of off on once only or other ought our ours ourselves out
    over own re s same shan't she she'd she'll she's should shouldn't so some such t than that that's the their
    theirs them themselves then there there's these they they'd they'll they're they've this those through to
    too under until up ve very was wasn't we we'd we'll we're we've were weren't what what's when when's where
    where's which while who who's whom why why's will with won't would wouldn't you you'd you'll you're you've
    your yours yourself yourselves
    """.split()
)


class DocumentTerms(NamedTuple):
    """The lexical side of a stored text."""

    terms: frozenset[str]
    length: int
    """Number of term occurrences, repetitions included: the length that ranking normalises by."""


class _Stemmers(threading.local):
    """The stemmer keeps its working state in itself, so each thread has its own."""

    def __init__(self) -> None:
        self.english = snowballstemmer.stemmer("english")


_stemmers = _Stemmers()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stemmed: str = _stemmers.english.stemWord(word)
    return stemmed


def _pieces(text: str) -> list[str]:
    if text.isascii():
        return _PIECE.findall(text.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    folded = folded.replace("\u2019", "'")
    # Marks that did not compose (Devanagari vowels, stray accents) would cut words in two.
    return _PIECE.findall("".join(c for c in folded if c < "\u0300" or unicodedata.category(c)[0] != "M"))


def _words(pieces: list[str]) -> list[str]:
    """One term per occurrence, in order; a run of unspaced script gives its pairs (or its only character)."""
    words: list[str] = []
    for piece in pieces:
        if piece >= "\u0e00" and _UNSPACED_START.match(piece):
            words.extend([piece[i : i + 2] for i in range(len(piece) - 1)] or [piece])
        elif piece not in STOP_WORDS:
            words.append(_stem(piece[:MAX_TERM_LENGTH]))
    return words


def document_terms(text: str) -> DocumentTerms:
    """Terms under which a stored text is found.

    Single characters of unspaced scripts are terms too, so that a query of one character (猫) finds longer
    words (猫咪); they do not count for the length.
    """
    pieces = _pieces(text)
    words = _words(pieces)
    singles = [c for piece in pieces if piece >= "\u0e00" and _UNSPACED_START.match(piece) for c in piece]
    return DocumentTerms(_bounded(words + singles), len(words))


def query_terms(text: str) -> tuple[str, ...]:
    """Distinct terms of a question, in order of appearance, at most ``MAX_QUERY_TERMS``."""
    return tuple(dict.fromkeys(_words(_pieces(text))))[:MAX_QUERY_TERMS]


def _bounded(words: list[str]) -> frozenset[str]:
    distinct = dict.fromkeys(words)
    if len(distinct) <= MAX_TERMS and len(distinct) * MAX_TERM_LENGTH * 4 <= MAX_TERM_BYTES:
        return frozenset(distinct)
    kept: list[str] = []
    room = MAX_TERM_BYTES
    for word in distinct:
        room -= len(word.encode())
        if room < 0 or len(kept) == MAX_TERMS:
            break
        kept.append(word)
    return frozenset(kept)
