"""Bringing a replica and the centre together: decisions, sessions, carriers, the loop in the background."""
