"""Benchmarks: each measures the product beside a raw baseline in the same run and prints the ratio."""
