"""The repository's own files, for tests that read or copy them."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "accum_sweeps",
    "jobs",
    "analysis",
    "conf",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
)
FOLDERS = ("accum_sweeps", "jobs", "analysis", "conf", "tests", ".ci")
TEXT = {".py", ".yaml", ".yml", ".toml", ".md", ".txt", ".in", ".ipynb", ".sh", ""}


def copy_to(folder: Path) -> Path:
    """What a release is built from, links kept as links; building writes into its own folder, so it gets a copy."""
    folder.mkdir(parents=True)
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def text_files() -> list[Path]:
    """Every text file that the project's people write: the folders at the top, and the files beside them."""
    beside = [p for p in ROOT.iterdir() if not p.name.startswith((".coverage", ".git"))]
    inside = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if "__pycache__" not in p.parts]
    return sorted(p for p in beside + inside if p.is_file() and not p.is_symlink() and p.suffix in TEXT)


def preset_files() -> set[str]:
    """The configuration files, relative to the folder above ``conf``: ``conf/grid/adamw.yaml``."""
    return {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
