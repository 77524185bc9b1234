"""Putting the topics together into one suite."""

from __future__ import annotations

from typing import Any, ClassVar

from memory.testing.access import AccessTests
from memory.testing.adding import AddingTests
from memory.testing.admission import AdmissionTests
from memory.testing.base import CAPABILITIES, OpenStore
from memory.testing.embedding import EmbeddingTests
from memory.testing.exchange import ExchangeTests
from memory.testing.filtering import FilterTests
from memory.testing.incremental import IncrementalTests
from memory.testing.isolation import IsolationTests
from memory.testing.listing import ListingTests
from memory.testing.recalling import RecallTests
from memory.testing.updating import UpdatingTests

__all__ = ["OpenStore", "ProviderSuite"]


class ProviderSuite(
    AddingTests,
    AdmissionTests,
    UpdatingTests,
    RecallTests,
    FilterTests,
    ListingTests,
    AccessTests,
    IsolationTests,
    EmbeddingTests,
    ExchangeTests,
    IncrementalTests,
):
    """Every test. A subclass defines the fixture ``open_store`` and may narrow ``capabilities``."""

    capabilities: ClassVar[frozenset[str]] = CAPABILITIES

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        overridden = [name for name in vars(cls) if name.startswith("test_")]
        if overridden:
            raise TypeError(f"{cls.__name__} may not override {overridden[0]}: the suite is the contract")
        unknown = cls.capabilities - CAPABILITIES
        if unknown:
            raise TypeError(f"{cls.__name__} declares unknown capabilities: {', '.join(sorted(unknown))}")
