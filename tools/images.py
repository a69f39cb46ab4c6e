"""Make estimator/hdp/estimator/images.json anew: ``python tools/images.py FOLDER VERSION DATE``.

FOLDER: ``image_uri_config`` of an installed SageMaker SDK; VERSION: the SDK's; DATE: of the day, as 2026-12-31.
Kept are what the SDK says of training images from TensorFlow 2.4 and PyTorch 1.7 on (older ones have tags of another
form), and of Debugger's rules: facts, in a shorter form.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hdp.estimator import images

_OUT = Path(images.__file__).with_name("images.json")
_KEPT = {
    "tensorflow": ("deep learning containers", (2, 4)),
    "pytorch": ("deep learning containers", (1, 7)),
    "pytorch-training-compiler": ("deep learning containers", (1, 12)),
    "pytorch-smp": ("model parallel", (2, 0)),
    "debugger": ("debugger", ()),
}


def _first(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2])) if version[0].isdigit() else ()


def _row(table: images.Table, accounts: dict[str, str], first: tuple[int, ...]) -> dict[str, Any]:
    kept = {v: r for v, r in table.releases.items() if _first(v) >= first}
    repositories = {r.repository for r in kept.values()}
    assert len(repositories) == 1, repositories
    assert all(accounts[region] == a for r in kept.values() for region, a in r.accounts.items())
    return {
        "repository": repositories.pop(),
        "processors": list(table.processors),
        "aliases": {a: v for a, v in table.aliases.items() if v in kept},
        "versions": {v: [list(r.py_versions), sorted(set(accounts) - set(r.accounts))] for v, r in kept.items()},
    }


def main(folder: Path, version: str, date: str) -> None:
    """Write the table."""
    read = {name: images.from_sdk(json.loads((folder / f"{name}.json").read_text()), "") for name in _KEPT}
    accounts: dict[str, dict[str, str]] = {}
    for name, (owner, first) in _KEPT.items():
        for v, release in read[name].releases.items():
            if _first(v) >= first:
                accounts.setdefault(owner, {}).update(release.accounts)
    rows = {
        name: {"accounts": owner, **_row(read[name], accounts[owner], first)} for name, (owner, first) in _KEPT.items()
    }
    source = f"image_uri_config of SageMaker's Python SDK {version}"
    table = {"source": source, "date": date, "accounts": accounts, "images": rows}
    _OUT.write_text(_lines(table) + "\n", encoding="utf-8")


def _lines(value: Any, depth: int = 0) -> str:
    """JSON with a line for each version and for each map of accounts."""
    if not isinstance(value, dict) or depth == 4 or (all(isinstance(v, str) for v in value.values()) and depth > 1):
        return json.dumps(value)
    inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(k)}: {_lines(v, depth + 1)}" for k, v in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
