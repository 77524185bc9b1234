"""Long-term memory for AI agents: shared by many hosts, and at hand where there is no network.

>>> import memory
>>> with memory.connect("memory://") as store:
...     _ = store.add_memory("项目代号叫夜莺", user_id="u-42", tags=["project"])
...     store.recall("项目代号", user_id="u-42")[0].memory.content
'项目代号叫夜莺'
"""

from memory.aio import AsyncMemoryProvider, connect_async
from memory.config import MemoryConfig
from memory.connect import connect
from memory.core.errors import (
    ConfigError,
    Conflict,
    EmbeddingError,
    EmbeddingInvalid,
    EmbeddingRejected,
    EmbeddingUnavailable,
    Error,
    FileDamaged,
    FormatError,
    FormatTooNew,
    IntegrityFailure,
    InvalidValue,
    ModelMismatch,
    NotFound,
    Refused,
    SchemaMismatch,
    StoreBusy,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    TargetError,
    Unsupported,
    UsageError,
    VectorIndexDamaged,
    VectorIndexUnavailable,
)
from memory.core.model import (
    ExportReport,
    ImportReport,
    Memory,
    MemoryPage,
    MemoryType,
    NewMemory,
    Notice,
    Recalled,
    RecallFilter,
    RejectedLine,
    Stats,
    Status,
)
from memory.core.ports import Clock, Embedder
from memory.core.provider import MemoryProvider
from memory.version import __version__

__all__ = [
    "AsyncMemoryProvider",
    "Clock",
    "ConfigError",
    "Conflict",
    "Embedder",
    "EmbeddingError",
    "EmbeddingInvalid",
    "EmbeddingRejected",
    "EmbeddingUnavailable",
    "Error",
    "ExportReport",
    "FileDamaged",
    "FormatError",
    "FormatTooNew",
    "ImportReport",
    "IntegrityFailure",
    "InvalidValue",
    "Memory",
    "MemoryConfig",
    "MemoryPage",
    "MemoryProvider",
    "MemoryType",
    "ModelMismatch",
    "NewMemory",
    "NotFound",
    "Notice",
    "RecallFilter",
    "Recalled",
    "Refused",
    "RejectedLine",
    "SchemaMismatch",
    "Stats",
    "Status",
    "StoreBusy",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreInUse",
    "StoreReadOnly",
    "StoreTimeout",
    "StoreUnavailable",
    "TargetError",
    "Unsupported",
    "UsageError",
    "VectorIndexDamaged",
    "VectorIndexUnavailable",
    "__version__",
    "connect",
    "connect_async",
]
