"""The tests; packages, so that helpers beside them can be imported."""
