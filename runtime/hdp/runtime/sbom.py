"""``python -m hdp.runtime.sbom NAME VERSION``: the packages of this environment as a CycloneDX 1.5 document (JSON).

Python's packages as their own metadata has them, and Debian's from dpkg's record. An image keeps it, and `hdp images`
reads it there. Source of the format: https://cyclonedx.org/docs/1.5/json/.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

_DPKG = Path("/var/lib/dpkg/status")


def document(name: str, version: str, dpkg: Path = _DPKG) -> dict[str, Any]:
    """The document for an image called `name`."""
    components = {c["bom-ref"]: c for c in (*_python(), *_debian(dpkg))}
    image = {"type": "container", "bom-ref": f"image:{name}", "name": name, "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": image},
        "components": [components[ref] for ref in sorted(components)],
    }


def _python() -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for found in distributions():  # in the order of sys.path: what is found first is what is imported
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
        if name and name not in seen:
            seen.add(name)
            yield _component(name, found.version, f"pkg:pypi/{name}@{quote(found.version)}")


def _debian(dpkg: Path) -> Iterator[dict[str, Any]]:
    if not dpkg.exists():
        return
    for record in dpkg.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version|Architecture): (.*)$", record, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            purl = f"pkg:deb/debian/{quote(fields['Package'])}@{quote(fields['Version'])}?arch={fields['Architecture']}"
            yield _component(fields["Package"], fields["Version"], purl)


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1], sys.argv[2]), indent=1))
