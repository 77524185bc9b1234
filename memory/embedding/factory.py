"""From a configuration string to an embedder."""

from __future__ import annotations

from memory.core.errors import ConfigError
from memory.core.ports import Embedder
from memory.embedding.fast import FastembedEmbedder
from memory.embedding.hashing import NAME_PREFIX as HASHING_PREFIX
from memory.embedding.hashing import HashingEmbedder
from memory.embedding.http import HttpEmbedder
from memory.embedding.local import LocalEmbedder

SCHEMES = ("local", "hashing[:DIMENSION]", "fastembed:MODEL", "openai:MODEL")
"""Every form a specification can take."""

DEFAULT_BASE_URL = "https://api.openai.com/v1"


def embedder_from(
    spec: str = "local",
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    dimension: int | None = None,
    request_dimensions: bool = False,
    similarity_floor: float | None = None,
    query_prefix: str = "",
    document_prefix: str = "",
    timeout: float = 30.0,
    batch_size: int = 64,
    max_attempts: int = 4,
    max_wait: float = 60.0,
) -> Embedder:
    """Make the embedder that a specification names; never another one in its stead.

    Args:
        spec: one of :data:`SCHEMES`; the model's own name may hold colons (``openai:bge-m3:latest``).
        api_key: for ``openai:``. Others ignore it, since a key is often set for something else too.
        base_url: for ``openai:``; None is OpenAI itself.
        dimension: length of the vectors; with ``openai:`` None asks the service, with ``local`` only 384.
        request_dimensions: for ``openai:``; have the service shorten its vectors to ``dimension``.
        similarity_floor: replaces the model's own, in [0, 1).
        query_prefix: for ``openai:`` and ``fastembed:``; put before questions.
        document_prefix: for ``openai:`` and ``fastembed:``; put before stored texts.
        timeout: for ``openai:``; seconds.
        batch_size: texts handled at once, with ``openai:`` and ``fastembed:``.
        max_attempts: for ``openai:``; attempts of each request.
        max_wait: for ``openai:``; seconds of waiting between attempts, per call.

    Returns:
        An embedder that has loaded nothing and sent nothing yet. The caller closes it.

    Raises:
        ConfigError: unknown scheme, missing model, or a setting the chosen scheme cannot follow.
        Unsupported: the scheme needs a package that is not installed.
    """
    scheme, _, model = spec.strip().partition(":")
    if scheme == "openai":
        return HttpEmbedder(
            _named(model, spec),
            base_url or DEFAULT_BASE_URL,
            api_key,
            dimension,
            request_dimensions=request_dimensions,
            batch_size=batch_size,
            timeout=timeout,
            max_attempts=max_attempts,
            max_wait=max_wait,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
            similarity_floor=0.0 if similarity_floor is None else similarity_floor,
        )
    if scheme not in {"local", "hashing", "fastembed"}:
        raise ConfigError(f"embedding {spec!r} is unknown", hint=f"use one of: {', '.join(SCHEMES)}")
    # Ignoring a setting would embed with a model that the user believes to have replaced.
    _only_for("openai:MODEL", spec, base_url=base_url, request_dimensions=request_dimensions)
    if scheme == "fastembed":
        fastembed = FastembedEmbedder(
            _named(model, spec),
            batch_size=batch_size,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
            similarity_floor=similarity_floor or 0.0,
        )
        return _of_dimension(fastembed, dimension)
    prefixes = {"query_prefix": query_prefix, "document_prefix": document_prefix}
    _only_for("openai:MODEL or fastembed:MODEL", spec, **prefixes)
    if scheme == "local":
        return _local(spec, model, dimension, similarity_floor)
    return _hashing(spec, model, dimension, similarity_floor)


def _local(spec: str, model: str, dimension: int | None, floor: float | None) -> Embedder:
    if model:
        raise ConfigError(f"embedding {spec!r}: local is one model and takes no name")
    embedder = LocalEmbedder() if floor is None else LocalEmbedder(similarity_floor=floor)
    return _of_dimension(embedder, dimension)


def _hashing(spec: str, model: str, dimension: int | None, floor: float | None) -> Embedder:
    if floor is not None:
        raise ConfigError(f"similarity_floor: {spec!r} has its own, 0")
    if model and not (model.isascii() and model.isdigit()):
        raise ConfigError(f"embedding {spec!r}: after hashing: comes a number of dimensions")
    return _of_dimension(HashingEmbedder(int(model) if model else dimension or 64), dimension)


def _only_for(able: str, spec: str, **settings: object) -> None:
    """Refuse settings that the chosen scheme cannot follow."""
    for setting, value in settings.items():
        if value:
            raise ConfigError(f"{setting}: only {able} can follow it, not {spec!r}")


def _named(model: str, spec: str) -> str:
    if not model:
        raise ConfigError(f"embedding {spec!r} names no model", hint=f"use one of: {', '.join(SCHEMES)}")
    return model


def _of_dimension(embedder: Embedder, dimension: int | None) -> Embedder:
    """Check a configured dimension against a model that has only one."""
    if dimension is not None and embedder.dimension != dimension:
        raise ConfigError(f"dimension: {embedder.name} has {embedder.dimension}, not {dimension}")
    return embedder


def spec_of(name: str) -> str:
    """The specification under which an embedder of that name is made, as far as the name tells."""
    if name == LocalEmbedder().name:
        return "local"
    if name.startswith(HASHING_PREFIX):
        return f"hashing:{name.removeprefix(HASHING_PREFIX)}"
    model, fastembed, _ = name.partition("@fastembed")
    return f"fastembed:{model}" if fastembed else f"openai:{name}"
