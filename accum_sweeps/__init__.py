"""Does gradient accumulation change what is trained? Designed sweeps with rounding controls, and a verdict with numbers."""
