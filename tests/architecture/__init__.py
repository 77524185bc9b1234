"""The shape of the code, as tests."""
