"""Helpers for tests of sync: an obviously right centre, faults, a model of the protocol and what drives it."""
