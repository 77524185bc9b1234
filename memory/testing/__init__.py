"""The conformance suite: what every memory provider must do, as tests that any provider can run.

A provider's own test file subclasses :class:`~memory.testing.suite.ProviderSuite` and says how to open a
store; every test of the suite then runs against it. Needs pytest.
"""

from memory.testing.suite import OpenStore, ProviderSuite

__all__ = ["OpenStore", "ProviderSuite"]
