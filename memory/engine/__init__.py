"""What every provider that keeps its own data shares: the verbs, on top of a narrow ``Storage`` port."""
