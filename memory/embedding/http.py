"""Any service that speaks OpenAI's ``POST /embeddings``: OpenAI itself, TEI, vLLM, Ollama and their like."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import httpx
import numpy as np

from memory.core.errors import (
    ConfigError,
    EmbeddingError,
    EmbeddingInvalid,
    EmbeddingRejected,
    EmbeddingUnavailable,
    UsageError,
)
from memory.core.ports import Vector, Vectors
from memory.embedding.answers import decode, message_in, status_in, vectors_in
from memory.embedding.checked import clean, floor_of, name_of, unit_rows
from memory.embedding.patience import Patience, retry_after

_RETRIED = frozenset({408, 409, 425, 429})
"""Besides every 5xx."""
_PERHAPS_ONE_ITEM = frozenset({400, 413, 422})
"""Refusals that can be about a single text or about the size of the batch."""
_LARGEST_ANSWER = 256 * 2**20
_HARMLESS = "hello"
_HINTS = {
    401: "check the API key",
    403: "check the API key and what it may use",
    404: "check the model name and the base URL",
}


@dataclass
class _Call:
    """What one call of the embedder has left to spend, and whether the service has accepted anything yet."""

    patience: Patience
    accepted: bool = False


class HttpEmbedder:
    """An embedding model behind HTTP. Safe to call from any number of threads, which share connections.

    Nothing is ever stored half: a call returns a vector for every text or raises for the whole.
    """

    def __init__(
        self,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        dimension: int | None = None,
        *,
        request_dimensions: bool = False,
        encoding_format: Literal["float", "base64"] | None = "float",
        batch_size: int = 64,
        batch_characters: int = 100_000,
        timeout: float = 30.0,
        max_attempts: int = 4,
        max_wait: float = 60.0,
        query_prefix: str = "",
        document_prefix: str = "",
        similarity_floor: float = 0.0,
        name: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the settings; nothing is sent yet.

        Args:
            model: the service's name of the model.
            base_url: up to and without ``/embeddings``; proxies are found as httpx finds them.
            api_key: sent as a bearer token; None sends none.
            dimension: length of the vectors; None learns it from the first answer.
            request_dimensions: ask the service to shorten its vectors to ``dimension``; not every one can.
            encoding_format: what to ask for; None leaves the field out, for services that refuse it.
                Whichever is asked for, both kinds of answer are understood.
            batch_size: texts in one request, at most.
            batch_characters: characters in one request, at most; a longer single text is sent alone.
            timeout: seconds for connecting, for sending, for the first byte, and from the start of the
                request to the last byte of an answer that is being received.
            max_attempts: attempts for each request, the first included.
            max_wait: seconds that the waits between the attempts of one call may add up to.
            query_prefix: put before questions, for models trained with one (E5: ``"query: "``).
            document_prefix: put before stored texts (E5: ``"passage: "``).
            similarity_floor: cosine of unrelated texts with this model, in [0, 1).
            name: identifies the model; None makes one from model, shortening and document prefix.
            sleep: waits the given seconds; replaced in tests.

        Raises:
            ConfigError: a setting is impossible.
        """
        _check(model=bool(model), batch_size=batch_size >= 1, batch_characters=batch_characters >= 1)
        _check(timeout=timeout > 0, max_attempts=max_attempts >= 1, max_wait=max_wait >= 0)
        _check(dimension=dimension is None or dimension >= 1)
        if request_dimensions and dimension is None:
            raise ConfigError("request_dimensions: needs a dimension to ask for")
        self._similarity_floor = floor_of(similarity_floor)
        self._url = _endpoint(base_url)
        self._api_key = api_key
        self._options: dict[str, object] = {"model": model}
        if encoding_format is not None:
            self._options["encoding_format"] = encoding_format
        if request_dimensions:
            self._options["dimensions"] = dimension
        shortened_to = dimension if request_dimensions else None
        self._name = name or name_of(model, shortened_to=shortened_to, document_prefix=document_prefix)
        self._batch_size, self._batch_characters = batch_size, batch_characters
        self._timeout, self._max_attempts, self._max_wait = timeout, max_attempts, max_wait
        self._prefixes = (query_prefix, document_prefix)
        self._sleep = sleep
        self._dimension = dimension
        self._dimension_lock = threading.Lock()
        self._probe_lock = threading.Lock()
        self._client = httpx.Client(timeout=timeout, headers=_headers(api_key))

    @property
    def name(self) -> str:
        """Identifies the model and what shapes its document vectors."""
        return self._name

    @property
    def dimension(self) -> int:
        """Length of every vector: as given, or as learnt from the first answer, asking once if need be.

        Raises:
            EmbeddingError: it is unknown and the service does not tell.
        """
        known = self._dimension
        if known is not None:
            return known
        with self._probe_lock:  # several threads that ask at once send one request
            known = self._dimension
            return known or self._request([_HARMLESS], 0, self._new_call()).shape[1]

    @property
    def similarity_floor(self) -> float:
        """Cosine that unrelated texts reach with this model, as configured."""
        return self._similarity_floor

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts that will be stored, in as many requests as their number and size need.

        Returns:
            Shape ``(len(texts), dimension)``. No text sends no request, unless the dimension is unknown.

        Raises:
            EmbeddingUnavailable: not reached, or answering 408, 409, 425, 429 or 5xx until attempts or
                waiting time were used up; fields ``status`` and ``retry_after`` where known, ``attempts``.
            EmbeddingRejected: any other refusal; field ``status``, and ``index`` when it is one text's fault.
            EmbeddingInvalid: unusable answer; ``index`` names the item where one is at fault.
            UsageError: the embedder is closed.
        """
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        prepared = [self._prepare(text, self._prefixes[1]) for text in texts]
        call = self._new_call()
        return np.concatenate(
            [self._embed(prepared[a:b], a, call) for a, b in self._batches([len(text) for text in prepared])]
        )

    def embed_query(self, text: str) -> Vector:
        """Embed a question; shape ``(dimension,)``. Raises as ``embed_documents``."""
        vectors: Vectors = self._request([self._prepare(text, self._prefixes[0])], 0, self._new_call())
        return np.asarray(vectors[0], dtype=np.float32)

    def close(self) -> None:
        """Close the connections; calling it twice is harmless."""
        self._client.close()

    def _new_call(self) -> _Call:
        return _Call(Patience(max_attempts=self._max_attempts, max_wait=self._max_wait, sleep=self._sleep))

    def _prepare(self, text: str, prefix: str) -> str:
        # Services refuse the empty string but not a blank, and an empty memory or question is no error.
        return prefix + clean(text) or " "

    def _batches(self, sizes: list[int]) -> Iterator[tuple[int, int]]:
        """Yield ``[start, end)`` of each request, given the characters of each text."""
        start = held = 0
        for position, size in enumerate(sizes):
            full = position - start == self._batch_size or held + size > self._batch_characters
            if full and position > start:
                yield start, position
                start, held = position, 0
            held += size
        yield start, len(sizes)

    def _embed(self, texts: list[str], start: int, call: _Call) -> Vectors:
        """Embed one batch; when it is refused, halve it until the text at fault stands alone."""
        try:
            return self._request(texts, start, call)
        except EmbeddingRejected as exc:
            if exc.status not in _PERHAPS_ONE_ITEM:
                raise
            if len(texts) == 1:
                raise self._blame(exc, start, call) from exc
        half = len(texts) // 2
        left = self._embed(texts[:half], start, call)
        return np.concatenate([left, self._embed(texts[half:], start + half, call)])

    def _blame(self, exc: EmbeddingRejected, index: int, call: _Call) -> EmbeddingRejected:
        """Name the text as the cause, unless the service refuses everything it is sent."""
        if not call.accepted:
            try:
                self._request([_HARMLESS], 0, call)
            except EmbeddingError:
                return exc
        return EmbeddingRejected(f"item {index}: {exc.message}", hint=exc.hint, **exc.fields, index=index)

    def _request(self, texts: list[str], start: int, call: _Call) -> Vectors:
        """Send one request until it is answered, refused for good, or patience ends."""
        attempt = 0
        while True:
            attempt += 1
            try:
                payload = self._attempt(texts)
                break
            except EmbeddingUnavailable as exc:
                if not call.patience.pause(attempt, exc.fields.get("retry_after")):
                    exc.fields["attempts"] = attempt
                    raise
        call.accepted = True
        rows = vectors_in(payload, len(texts), start=start)
        vectors = unit_rows(rows, start=start, dimension=self._dimension)
        self._learn(vectors.shape[1], start)
        return vectors

    def _learn(self, dimension: int, start: int) -> None:
        """Keep the dimension of the first answer, and hold every later one to it."""
        with self._dimension_lock:
            if self._dimension is None:
                self._dimension = dimension
            # Two first answers can arrive together, each checked before the other was known.
            if dimension != self._dimension:
                raise EmbeddingInvalid(
                    f"the vectors have {dimension} dimensions, not {self._dimension} as before", index=start
                )

    def _attempt(self, texts: list[str]) -> dict[str, object]:
        """Send one request once and return the parsed body of a good answer."""
        host = self._url.host
        try:
            status, headers, body = self._exchange({**self._options, "input": texts})
        except httpx.TimeoutException as exc:
            raise EmbeddingUnavailable(f"{host} did not answer within {self._timeout:g} s") from exc
        except RuntimeError as exc:
            if self._client.is_closed:
                raise UsageError("this embedder is closed") from exc
            raise
        except httpx.RequestError as exc:
            raise EmbeddingUnavailable(f"{host} cannot be reached: {type(exc).__name__}: {exc}") from exc
        payload = decode(body)
        if 200 <= status < 300:
            status = status_in(payload) or status
        if 200 <= status < 300:
            return payload
        explanation = message_in(payload, secret=self._api_key, texts=texts)
        message = f"{host} answered {status}" + (f": {explanation}" if explanation else "")
        if status in _RETRIED or status >= 500:
            raise EmbeddingUnavailable(message, status=status, retry_after=retry_after(headers))
        raise EmbeddingRejected(message, hint=_HINTS.get(status, ""), status=status)

    def _exchange(self, request: dict[str, object]) -> tuple[int, httpx.Headers, bytes]:
        """Post the request and read the whole answer, within a bound of time and of size."""
        content = json.dumps(request, ensure_ascii=False).encode()
        deadline = time.monotonic() + self._timeout
        body = bytearray()
        with self._client.stream("POST", self._url, content=content) as response:
            for chunk in response.iter_bytes():
                body += chunk
                # httpx times each read, so a service that drips could hold the caller for ever.
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer dripped", request=response.request)
                if len(body) > _LARGEST_ANSWER:
                    raise EmbeddingInvalid("the embedding service answered with more than 256 MiB")
            return response.status_code, response.headers, bytes(body)


def _check(**conditions: bool) -> None:
    """Raise ConfigError for the first setting whose condition does not hold."""
    for setting, holds in conditions.items():
        if not holds:
            raise ConfigError(f"{setting}: empty or out of range")


def _endpoint(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, ValueError) as exc:  # ValueError: a host name that IDNA refuses
        raise ConfigError("base_url: not a URL") from exc
    if url.scheme not in {"http", "https"} or not url.host or "%" in url.host:
        raise ConfigError("base_url: not an http or https URL")
    return url.copy_with(path=url.path.rstrip("/") + "/embeddings")  # a query (?api-version=…) stays


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if api_key:
        # The HTTP library would quote the whole header, key included, in its own error about it.
        if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ConfigError("api_key: holds blanks, line ends or characters that no key has")
        headers["Authorization"] = f"Bearer {api_key}"
    return headers
