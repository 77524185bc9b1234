"""The product from outside: its command, run as people run it."""
