"""Text and token files as batches; numpy only, so that planning can use it without torch."""
