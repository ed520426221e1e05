"""From run directories to tables, statistics and verdicts."""
