"""The configuration files, found by Hydra as pkg://accum_sweeps.conf."""
