"""What failures of qdrant-client mean, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from edge.vectors.folder import failure
from memory.core.errors import Error, VectorIndexDamaged, VectorIndexUnavailable


@contextmanager
def local_errors(doing: str, path: Path) -> Iterator[None]:
    """Local mode reads pickles and tables as they come, so anything may be raised where they are damaged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Error | Warning):
            raise
        if "already accessed by another instance" in str(error):
            raise VectorIndexUnavailable(f"{path} is open elsewhere", hint="close it there") from error
        raise failure(error, doing, path) from error


@contextmanager
def server_errors() -> Iterator[None]:
    """Sort what a request to a server may end in: try again later, or make the collection anew."""
    try:
        yield
    except UnexpectedResponse as error:
        raise _refusal(error) from error
    except ResponseHandlingException as error:
        raise VectorIndexUnavailable(f"No answer from the Qdrant server: {error.source!r:.300}") from error
    except (ApiException, QdrantException, ValueError, AssertionError) as error:
        hint = "check that qdrant_url leads to a Qdrant server"
        raise VectorIndexUnavailable(f"Not the answer of a Qdrant server: {error!r:.300}", hint=hint) from error


def _refusal(error: UnexpectedResponse) -> Error:
    """What a status other than success means."""
    status, said = error.status_code, _said(error)
    answer = f"The Qdrant server answered {status}: {said or error.reason_phrase:.300}"
    if status in (401, 403):
        return VectorIndexUnavailable(answer, hint="check qdrant_api_key")
    if status == 404 and not said:
        return VectorIndexUnavailable(answer, hint="check that qdrant_url leads to a Qdrant server")
    if status == 404 or (status == 400 and "vector" in said.lower()):
        return VectorIndexDamaged(answer)  # the collection is gone, or another one has its name
    return VectorIndexUnavailable(answer)


def _said(error: UnexpectedResponse) -> str:
    """Qdrant's own words; nothing if somebody else answered."""
    try:
        body: Any = error.structured()
    except ValueError:
        return ""
    status = body.get("status") if isinstance(body, dict) else None
    return str(status.get("error", "")) if isinstance(status, dict) else ""
