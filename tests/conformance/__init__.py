"""The shipped suite on each provider."""
