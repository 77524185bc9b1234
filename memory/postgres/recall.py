"""The search: one statement that finds candidates by vector and by words, and rates each both ways.

Both sides read one user's rows only, through indexes that lead with the user, and every filter is applied
before the best are taken. There is no approximate graph: it would be filtered after its search and miss rows
of small users (see .github/ARCHITECTURE.md).
"""

from __future__ import annotations

from typing import Any, Final

from pgvector import Vector as PgVector

from memory.engine.storage import Query
from memory.policies.admission import Filter
from memory.policies.ranking import BM25_B, BM25_K1, Candidate
from memory.postgres.database import Db
from memory.postgres.filters import Where, narrow, wide
from memory.postgres.terms import lexemes, tsquery

LONGEST_COVERED: Final = 512
"""Largest dimension whose vectors the covering index holds; a literal in its definition."""

_SLICE = """slice AS MATERIALIZED (
    SELECT m.memory_id, m.length FROM memories m WHERE {memories}
)"""

# Figures are compared at six decimals, as in ranking: the last digits differ between engines, and with the order of
# a sum. Rounding also keeps an index on the distance, should an operator have made one, out of the plan.
_DENSE = """dense AS MATERIALIZED (
    SELECT v.memory_id, -(v.embedding <#> %(vector)b) AS cosine
    FROM memory_vectors v {joined}
    WHERE v.model_id = %(model)s AND v.dimension {bound} AND {vectors}
    ORDER BY round((v.embedding <#> %(vector)b) * 1e6), v.created_at DESC, v.memory_id
    LIMIT %(size)s
)"""

# OFFSET 0 leaves the index of terms as the only way in, whatever the planner believes about the filters; its
# keys lead with the user, so the rows that it yields are (all but) only the user's.
_LEXICAL = """asked AS MATERIALIZED (
    SELECT query::tsquery AS query, number FROM unnest(%(terms)s::text[]) WITH ORDINALITY AS u(query, number)
), matched AS MATERIALIZED (
    SELECT a.number, m.memory_id, m.length, m.created_at
    FROM asked a CROSS JOIN LATERAL (
        SELECT user_id, memory_id, status, memory_type, created_at, length
        FROM memories WHERE terms @@ a.query OFFSET 0
    ) m {joined}
    WHERE {memories}
), size AS MATERIALIZED (
    SELECT count(*)::float8 AS n, coalesce(avg(m.length), 0)::float8 AS mean FROM {counted}
), weighted AS MATERIALIZED (
    SELECT a.number, ln(1 + (s.n - coalesce(f.n, 0) + 0.5) / (coalesce(f.n, 0) + 0.5)) AS weight
    FROM asked a
    CROSS JOIN size s
    LEFT JOIN (SELECT number, count(*) AS n FROM matched GROUP BY number) f USING (number)
), lexical AS MATERIALIZED (
    SELECT t.memory_id, t.created_at, least(1, t.weight / w.total
        * (%(k1)s + 1) / (1 + %(k1)s * (1 - %(b)s + %(b)s * t.length / s.mean))) AS lexical
    FROM (
        SELECT memory_id, length, created_at, sum(weight) AS weight
        FROM matched JOIN weighted USING (number) GROUP BY memory_id, length, created_at
    ) t
    CROSS JOIN size s
    CROSS JOIN (SELECT sum(weight) AS total FROM weighted) w
)"""

# Sides are put together by grouping, not by joining: the planner knows nothing about the size of a WITH
# query, and would join them row by row.
_RATED = """SELECT m.memory_id::text, {cosine}, coalesce(c.lexical, 0), m.importance, m.created_at, (
    SELECT nullif(max(a.last_access_at), 0) FROM memory_access a
    WHERE a.user_id = %(user)s AND a.memory_id = m.memory_id
) FROM (
    SELECT memory_id, max(cosine) AS cosine, max(lexical) AS lexical FROM ({sides}) s GROUP BY memory_id
) c JOIN memories m ON m.user_id = %(user)s AND m.memory_id = c.memory_id"""

_DENSE_SIDE = "SELECT memory_id, cosine, NULL::float8 AS lexical FROM dense"
_LEXICAL_SIDE = """(
    SELECT memory_id, NULL::float8 AS cosine, lexical FROM lexical
    ORDER BY round(lexical * 1e6) DESC, created_at DESC, memory_id LIMIT %(size)s
)"""
_LEXICAL_OF_DENSE = """SELECT memory_id, NULL::float8, lexical FROM lexical
    WHERE memory_id = ANY(ARRAY(SELECT memory_id FROM dense))"""

# By the whole key of the covering index, whose pages the dense side has just read.
_COSINE = """coalesce(c.cosine, (SELECT -(v.embedding <#> %(vector)b) FROM memory_vectors v
    WHERE v.user_id = %(user)s AND v.model_id = %(model)s AND v.dimension {bound} AND v.status = m.status
    AND v.created_at = m.created_at AND v.memory_id = m.memory_id))"""


def candidates_statement(
    user_id: str, query: Query, given: Filter, *, model_id: int, dimension: int
) -> tuple[str, dict[str, Any]] | None:
    """The statement and its parameters; None when there is neither a vector nor a term to search by."""
    if query.vector is None and not query.terms:
        return None
    where = Where()
    params: dict[str, Any] = {"user": user_id, "size": query.size}
    parts, sides = [], []
    simple = given.is_narrow
    if not simple:
        parts.append(_SLICE.format(memories=_memories(where, given, complete=True)))
    if query.vector is not None:
        params |= {"vector": PgVector(query.vector), "model": model_id}
        parts.append(_dense(where, given, simple=simple, dimension=dimension))
        sides.append(_DENSE_SIDE)
    if query.terms:
        lexeme_queries = [tsquery(lexeme) for lexeme in lexemes(user_id, query.terms)]
        params |= {"terms": lexeme_queries, "k1": BM25_K1, "b": BM25_B}
        parts.append(_lexical(where, given, simple=simple))
        sides.append(_LEXICAL_SIDE)
    if len(sides) == 2:
        sides.append(_LEXICAL_OF_DENSE)
    cosine = "NULL::float8" if query.vector is None else _COSINE.format(bound=_bound(dimension))
    rated = _RATED.format(cosine=cosine, sides=" UNION ALL ".join(sides))
    return f"WITH {', '.join(parts)} {rated}", params | where.params


def find_candidates(
    connection: Db, user_id: str, query: Query, given: Filter, *, model_id: int, dimension: int
) -> list[Candidate]:
    """See ``Storage.candidates``."""
    statement = candidates_statement(user_id, query, given, model_id=model_id, dimension=dimension)
    if statement is None:
        return []
    rows = connection.execute(*statement).fetchall()
    return [
        Candidate(
            memory_id=memory_id,
            cosine=cosine,
            lexical=lexical,
            importance=importance,
            created_at=created_at,
            last_access_at=last_access_at,
        )
        for memory_id, cosine, lexical, importance, created_at, last_access_at in rows
    ]


def _memories(where: Where, given: Filter, *, complete: bool = False) -> str:
    inner = Where()
    inner.params = where.params  # one numbering for the whole statement
    inner.add("m.user_id = %(user)s")
    narrow(inner, "m", given)
    if complete:
        wide(inner, "m", given)
    return str(inner)


def _bound(dimension: int) -> str:
    """The condition under which one of the two partial indexes is usable."""
    return f"{'<=' if dimension <= LONGEST_COVERED else '>'} {LONGEST_COVERED}"


def _dense(where: Where, given: Filter, *, simple: bool, dimension: int) -> str:
    inner = Where()
    inner.params = where.params
    inner.add("v.user_id = %(user)s")
    narrow(inner, "v", given)
    joined = "" if simple else "JOIN slice USING (memory_id)"
    return _DENSE.format(joined=joined, bound=_bound(dimension), vectors=str(inner))


def _lexical(where: Where, given: Filter, *, simple: bool) -> str:
    memories = _memories(where, given)
    if simple:
        counted = f"memories m WHERE {_memories(where, given)}"
        return _LEXICAL.format(joined="", memories=memories, counted=counted)
    return _LEXICAL.format(joined="JOIN slice USING (memory_id)", memories=memories, counted="slice m")
