"""The same memories at two places must come up in the same order: mixed texts, varied questions, and how to compare."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import memory
from memory.core.provider import MemoryProvider

DAY_MS: Final = 86_400_000
NOW: Final = 1_800_000_000_000
USERS: Final = ("u-1", "用户二")
ENGLISH: Final = (
    "the landlord brings the keys on {day}",
    "prefers {drink} without sugar after lunch",
    "project {code} ships its first version on {day}",
    "met {name} at the library, talked about {topic}",
    "running {number} kilometres before breakfast",
    "the password of the {topic} server was changed by {name}",
)
CHINESE: Final = (
    "项目代号叫{code_zh}，{day_zh}交付第一版",
    "{name_zh}不喜欢加糖的{drink_zh}",
    "{day_zh}和{name_zh}去图书馆讨论{topic_zh}",
    "每天早上跑{number}公里",
    "房东{day_zh}送钥匙来",
)
JAPANESE: Final = (
    "{name_ja}さんは{drink_ja}が好きです",
    "{topic_ja}の会議は{number}時からです",
    "図書館で{topic_ja}の本を借りた",
)
KOREAN: Final = (
    "{name_ko} 씨는 {drink_ko}를 좋아해요",
    "{topic_ko} 회의는 {number}시에 시작합니다",
    "도서관에서 {topic_ko} 책을 빌렸어요",
)
CODE: Final = (
    "def retry_{topic}(n={number}): return client.get('/{topic}', timeout=n)",
    "SELECT name FROM {topic} WHERE id = {number} ORDER BY created_at DESC;",
    "git rebase -i HEAD~{number} && npm run build:{topic}",
    "TypeError: {topic}Handler() takes {number} positional arguments",
)
EMOJI: Final = ("🎉 {name} got the job! 🥂", "☕ {drink} > 🍵", "🏃‍♀️ {number} km today 💪", "👍", "🐦 {code} 夜莺")
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "day": ("monday", "friday", "the 3rd of may", "tomorrow"),
    "drink": ("coffee", "green tea", "oolong"),
    "code": ("nightingale", "falcon", "kingfisher"),
    "name": ("Ana", "Bo", "Chandra", "O'Neill"),
    "topic": ("billing", "search", "travel", "gardening"),
    "day_zh": ("周一", "下周五", "明天", "五月三号"),
    "drink_zh": ("咖啡", "绿茶", "乌龙茶"),
    "code_zh": ("夜莺", "猎鹰", "翠鸟"),
    "name_zh": ("小王", "李雷", "房东太太"),
    "topic_zh": ("旅行计划", "账单", "搜索系统"),
    "drink_ja": ("コーヒー", "緑茶"),
    "name_ja": ("田中", "ゆき"),
    "topic_ja": ("旅行", "検索", "庭仕事"),
    "drink_ko": ("커피", "녹차"),
    "name_ko": ("민수", "지영"),
    "topic_ko": ("여행", "검색"),
}
LANGUAGES: Final = (ENGLISH, CHINESE, JAPANESE, KOREAN, CODE, EMOJI)


@dataclass(frozen=True)
class Question:
    """A recall to make at both places."""

    text: str
    user_id: str
    filters: dict[str, Any]
    top_k: int


@dataclass(frozen=True)
class Difference:
    """What two places answered differently."""

    question: Question
    ours: list[tuple[str, float]]
    theirs: list[tuple[str, float]]


def made_up(chance: random.Random, patterns: Sequence[str]) -> str:
    """A sentence of a language."""
    words = {name: chance.choice(options) for name, options in WORDS.items()}
    return chance.choice(patterns).format(number=chance.randrange(2, 40), **words)


def fill(store: MemoryProvider, texts: Sequence[str], *, seed: int) -> None:
    """Store texts with everything that filters ask for; some archived, some twice, some with ties in time."""
    chance = random.Random(seed)
    for user in USERS:
        mine = [text for text in texts if chance.random() < 0.7 or user == USERS[0]]
        added = store.add_many([_memory(chance, text) for text in mine], user_id=user)
        for one in added:
            if chance.random() < 0.1:
                status = chance.choice(["archived", "superseded"])
                store.update_memory(one.memory_id, user_id=user, status=status)


def _memory(chance: random.Random, text: str) -> memory.NewMemory:
    metadata: list[dict[str, Any]] = [
        {},
        {"n": chance.randrange(9)},
        {"n": chance.random(), "键": "值"},
        {"flag": True},
    ]
    return memory.NewMemory(
        content=text,
        memory_type=chance.choice(["fact", "preference", "event", "summary"]),
        importance=chance.choice([None, round(chance.random(), 2)]),
        tags=chance.sample(["work", "home", "旅行", "コード", "x"], chance.randrange(3)),
        metadata=chance.choice(metadata),
        source_session=chance.choice([None, "s-1", "会话二"]),
        created_at=NOW - chance.randrange(90) * DAY_MS,
    )


def texts(count: int, turns: Sequence[str] = ()) -> list[str]:
    """Texts of all languages in turn; with ``turns`` of real conversations a half is taken from these."""
    chance = random.Random(11)
    out = list(turns[: count // 2])
    while len(out) < count:
        out.append(made_up(chance, LANGUAGES[len(out) % len(LANGUAGES)]))
    return out


def questions(count: int, known: Sequence[str]) -> Iterator[Question]:
    """Questions about them: parts of known texts and new ones, with every kind of filter."""
    chance = random.Random(23)
    for number in range(count):
        text = chance.choice(known)
        if number % 3 == 0:
            words = text.split()
            text = " ".join(chance.sample(words, min(len(words), 4))) if len(words) > 2 else text[: len(text) // 2 + 1]
        elif number % 3 == 1:
            text = made_up(chance, chance.choice(LANGUAGES))
        yield Question(text, chance.choice(USERS), _filters(chance, number), chance.choice([1, 5, 10, 50]))


def _filters(chance: random.Random, number: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {},
        {"types": chance.sample(["fact", "preference", "event", "summary"], 2)},
        {"tags_any": ["work", "旅行"]},
        {"tags_all": ["work", "home"]},
        {"created_from": NOW - 30 * DAY_MS},
        {"created_from": NOW - 60 * DAY_MS, "created_to": NOW - 20 * DAY_MS},
        {"source_session": "会话二"},
        {"min_importance": 0.5},
        {"min_relevance": 0.2},
        {"metadata": {"n": {"gte": 3}}},
        {"metadata": {"键": "值"}, "statuses": ["active", "archived"]},
        {"metadata": {"flag": {"exists": False}}, "types": ["fact", "event"]},
        {"statuses": ["archived", "superseded"]},
    ]
    return kinds[number % len(kinds)]


def compare(ours: MemoryProvider, theirs: MemoryProvider, asked: Sequence[Question]) -> tuple[list[Difference], float]:
    """Ask both. Returns questions with other ids or another order, and the largest difference of a score."""
    differing: list[Difference] = []
    largest = 0.0
    for question in asked:
        answers = []
        for store in (ours, theirs):
            found = store.recall(
                question.text, user_id=question.user_id, filters=question.filters, top_k=question.top_k
            )
            answers.append([(hit.memory.memory_id, hit.score) for hit in found])
        if [memory_id for memory_id, _ in answers[0]] != [memory_id for memory_id, _ in answers[1]]:
            differing.append(Difference(question, *answers))
        else:
            pairs = zip(*answers, strict=True)
            largest = max([largest, *(abs(a[1] - b[1]) for a, b in pairs)])
    return differing, largest
