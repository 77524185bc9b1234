"""Words for lexical search: the same at the centre, at the edge and in memory, so the same order everywhere.

NFKC, case folded. Words of letters and digits: English stop words dropped, then the Snowball English stemmer
(which leaves words of other languages mostly alone). Runs of scripts written without spaces (Han, kana,
Hangul, Thai, Lao, Khmer, Burmese) become overlapping pairs of characters. Emoji count as words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import snowballstemmer

MAX_TERM_LENGTH: Final = 64
"""Longer words (keys, base64) are known by their beginning."""
MAX_TERMS: Final = 16_384
MAX_TERM_BYTES: Final = 512 * 1024
"""Distinct terms of one text; far below the 1 MB that a Postgres tsvector can hold."""
MAX_QUERY_TERMS: Final = 128
_FAR_BELOW_LIMITS: Final = MAX_TERMS
"""Characters of an ASCII text that can have neither too many terms nor too long ones."""

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


def _is_unspaced(piece: str) -> bool:
    return piece >= "\u0e00" and _UNSPACED_START.match(piece) is not None


def _pairs(run: str) -> list[str]:
    """Overlapping pairs of a run of unspaced script, or its only character."""
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def _words(pieces: list[str]) -> Iterator[str]:
    """One term per occurrence, in order, made only as far as they are asked for."""
    for piece in pieces:
        if _is_unspaced(piece):
            yield from _pairs(piece)
        elif piece not in STOP_WORDS:
            yield _stem(piece[:MAX_TERM_LENGTH])


def document_terms(text: str) -> DocumentTerms:
    """Terms under which a stored text is found.

    Single characters of unspaced scripts are terms too, so that a query of one character (猫) finds longer
    words (猫咪); they do not count for the length.
    """
    pieces = _pieces(text)
    if text.isascii() and len(text) <= _FAR_BELOW_LIMITS:
        words = [_stem(piece[:MAX_TERM_LENGTH]) for piece in pieces if piece not in STOP_WORDS]
        return DocumentTerms(frozenset(words), len(words))
    terms = _BoundedTerms()
    length = 0
    for piece in pieces:
        if _is_unspaced(piece):
            length += max(len(piece) - 1, 1)
            terms.add_all(chain(_pairs(piece), piece))
        elif piece not in STOP_WORDS:
            length += 1
            if not terms.full:
                terms.add_all((_stem(piece[:MAX_TERM_LENGTH]),))
    return DocumentTerms(frozenset(terms.held), length)


class _BoundedTerms:
    """Distinct terms up to the limits; what comes later is left out."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.full = False
        self._room = MAX_TERM_BYTES

    def add_all(self, terms: Iterable[str]) -> None:
        for term in terms:
            if self.full:
                return
            if term not in self.held:
                self._room -= len(term.encode())
                self.full = self._room < 0 or len(self.held) == MAX_TERMS
                if not self.full:
                    self.held.add(term)


def query_terms(text: str) -> tuple[str, ...]:
    """Distinct terms of a question, in order of appearance, at most ``MAX_QUERY_TERMS``."""
    terms: dict[str, None] = {}
    for word in _words(_pieces(text)):
        terms[word] = None
        if len(terms) == MAX_QUERY_TERMS:
            break
    return tuple(terms)
