"""Tests of one module at a time; a package, so that helpers beside them can be imported."""
