"""What is kept of a sweep: run directories, sweep directories, and their replay into MLflow."""
