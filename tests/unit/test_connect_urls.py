"""URLs: which store they name, and what is wrong with those that name none."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memory
from memory.connect import _scheme, edge_path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("edge:///var/lib/agent", "/var/lib/agent"),
        ("edge:/var/lib/agent", "/var/lib/agent"),
        ("edge:relative", "relative"),
        ("edge:./relative/path", "relative/path"),
        ("edge:../beside", "../beside"),
        ("edge:~/mine", "~/mine"),
        ("edge:.", "."),
        ("edge:///with%20blank", "/with blank"),
        ("edge:///with blank", "/with blank"),
        ("edge:///100%25", "/100%"),
        ("edge:///100%", "/100%"),
        ("edge:///a%3Fb%23c", "/a?b#c"),
        ("edge:///记忆/%E5%A4%9C%E8%8E%BA", "/记忆/夜莺"),
        ("edge:///a+b&c=d;e@f:g", "/a+b&c=d;e@f:g"),
        ("edge:////double", "//double"),
        ("edge:///trailing/", "/trailing"),
        ("edge:edge:odd", "edge:odd"),
    ],
)
def test_an_edge_url_names_a_directory(url: str, path: str) -> None:
    assert edge_path(url) == Path(path)


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
        lambda p: p.strip("/")
    )
)
def test_any_path_can_be_written_as_a_url(path: str) -> None:
    assert edge_path(f"edge:///{quote(path)}") == Path(f"/{path}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("edge:", "names no directory"),
        ("edge:/", "names no directory"),
        ("edge://", "host"),
        ("edge:///", "names no directory"),
        ("edge:////", "names no directory"),
        ("edge:///%2F", "names no directory"),
        ("edge://host/path", "host"),
        ("edge://localhost/path", "host"),
        ("edge://path", "host"),
        ("edge://user:secret@host/path", "host"),
        ("edge:///a?b", "? or #"),
        ("edge:///a#b", "? or #"),
        ("edge:a?mode=ro", "? or #"),
    ],
)
def test_an_edge_url_without_a_directory_is_refused(url: str, told: str) -> None:
    for call in (lambda: edge_path(url), lambda: memory.connect(url, embedding_model="hashing")):
        with pytest.raises(memory.ConfigError) as caught:
            call()
        assert told in caught.value.message
        assert caught.value.hint
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("postgresql://host/db", "postgresql"),
        ("postgres://host/db", "postgres"),
        ("memory://", "memory"),
        ("edge:///path", "edge"),
        ("edge:path", "edge"),
        ("edge:", "edge"),
    ],
)
def test_the_scheme_says_which_store(url: str, scheme: str) -> None:
    assert _scheme(url) == scheme


@pytest.mark.parametrize("url", ["", "edge", "memory:", "postgresql:host", "/var/lib/agent", "me:secret@host/db"])
def test_what_has_no_scheme_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(memory.ConfigError, match="no scheme") as caught:
        _scheme(url)
    assert "edge:///directory" in caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://memory.example.org", memory.Unsupported),
        ("http://localhost:8000", memory.Unsupported),
        ("sqlite:///file.db", memory.ConfigError),
        ("edges:///path", memory.ConfigError),
        ("EDGE:///path", memory.ConfigError),
        ("file:///path", memory.ConfigError),
    ],
)
def test_other_schemes_are_refused_by_name(url: str, kind: type[memory.Error]) -> None:
    with pytest.raises(kind) as caught:
        _scheme(url)
    assert url.split(":", 1)[0] in caught.value.message
    assert "edge:///directory" in caught.value.hint


@pytest.mark.parametrize("url", [7, b"edge:///x", Path("/x")])
def test_a_url_is_text(url: object) -> None:
    with pytest.raises(memory.ConfigError, match="must be a string"):
        memory.connect(url)  # type: ignore[call-overload]
