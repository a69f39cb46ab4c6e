"""Which notebooks there are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
