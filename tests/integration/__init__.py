"""Tests against real processes and sockets on this machine."""
