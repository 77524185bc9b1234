"""Laws of the pure core, held by generated values; a package, so that the strategies can be shared."""
