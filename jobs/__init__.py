"""Which worker runs what, where, and how it goes."""
