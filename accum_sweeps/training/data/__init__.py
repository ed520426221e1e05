"""Texts, token files and images with captions as batches; no torch, so that planning can use it."""
