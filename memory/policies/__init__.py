"""Pure decisions: what is admitted, how important it is, in which order it is recalled, what is forgotten."""
