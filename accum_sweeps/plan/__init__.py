"""What shall be run: settings, specifications, grids. Imports neither torch nor mlflow."""
