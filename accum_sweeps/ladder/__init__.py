"""One optimizer step seen from inside: the same step made in two ways at the same weights, and compared."""
