"""How one run computes: accumulation, precision, optimizers, data, models and the loop that joins them."""
