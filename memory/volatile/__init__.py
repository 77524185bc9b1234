"""``memory://``: everything in this process, gone with it. Obviously right, so tests compare others with it."""
