"""Settings: arguments, environment, and errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memory
from memory.config import load_config


def test_defaults_are_document_1s() -> None:
    config = load_config()
    assert (config.rerank_alpha, config.rerank_beta, config.rerank_gamma) == (0.6, 0.25, 0.15)
    assert (config.recall_top_k, config.recency_days, config.importance_days) == (10, 30.0, 90.0)
    assert config.database_url is None
    assert config.track_access is True


def test_the_environment_sets_what_arguments_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_RECALL_TOP_K", "3")
    monkeypatch.setenv("MEMORY_TRACK_ACCESS", "false")
    monkeypatch.setenv("MEMORY_DATABASE_URL", "memory://")
    monkeypatch.setenv("MEMORY_EMBEDDING_MODEL", "")
    config = load_config(recall_top_k=5)
    assert (config.recall_top_k, config.track_access, config.embedding_model) == (5, False, "local")
    with memory.connect(embedding_model="hashing") as store:
        for i in range(4):
            store.add_memory(f"note {i}", user_id="u")
        assert len(store.recall("note", user_id="u")) == 3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"recall_top_k": 0}, "recall_top_k"),
        ({"rerank_alpha": float("nan")}, "rerank_alpha"),
        ({"rerank_alpha": 2}, "rerank_alpha"),
        ({"recency_days": 0}, "recency_days"),
        ({"rank_by": "mood"}, "rank_by"),
        ({"pool_size": 0}, "pool_size"),
        ({"similarity_floor": 1.0}, "similarity_floor"),
        ({"now": -1}, "now"),
        ({"data_directory": Path()}, "data_directory"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(memory.ConfigError) as caught:
        memory.connect("memory://", **settings)
    assert caught.value.setting == name
    assert f"MEMORY_{name.upper()}" in caught.value.hint


def test_an_unknown_setting_is_answered_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(memory.ConfigError) as caught:
        memory.connect("memory://", recall_topk=3)
    assert caught.value.setting == "recall_topk"
    assert "recall_top_k" in caught.value.hint
    monkeypatch.setenv("MEMORY_RECALL_TOPK", "3")
    memory.connect("memory://", embedding_model="hashing").close()
    assert "MEMORY_RECALL_TOPK" in caplog.text
    assert "recall_top_k" in caplog.text


def test_a_bad_value_in_the_environment_is_named_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_POOL_SIZE", "s3cret")
    with pytest.raises(memory.ConfigError) as caught:
        memory.connect("memory://")
    assert "pool_size" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_config_and_single_settings_do_not_mix() -> None:
    with pytest.raises(memory.ConfigError):
        memory.connect("memory://", config=memory.MemoryConfig(), recall_top_k=3)


def test_secrets_do_not_show_in_a_printed_config() -> None:
    config = load_config(database_url="postgresql://me:s3cret@host/x", embedding_api_key="k3y")
    assert "s3cret" not in repr(config)
    assert "k3y" not in repr(config)


def test_a_fixed_time_and_no_tracking_make_runs_repeatable() -> None:
    runs = []
    for _ in range(2):
        with memory.connect("memory://", embedding_model="hashing", now=1_800_000_000_000, track_access=False) as store:
            for i in range(5):
                store.add_memory(f"note {i}", user_id="u", memory_id=f"6f1f0c6e-8f5e-4a4e-9d0c-2f5f3d6f7a0{i}")
            runs.append([store.recall("note 3", user_id="u") for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] == runs[0][1]
