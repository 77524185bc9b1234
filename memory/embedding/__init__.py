"""Embedding models behind the :class:`~memory.core.ports.Embedder` port.

``factory.embedder_from`` turns a configuration string into an embedder; each adapter lives in a module of
its own. This file imports nothing, so that a program that only needs one adapter pays for no other.
"""
