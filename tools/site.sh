# Add to .venv what the site and the tests of the notebooks need; nothing is done where it's there.
#
# pip installs the extras' packages and not the project itself, which would compile the core again.
set -eu
! python -c 'import furo, ipywidgets, myst_nb, nbclient' 2>/dev/null || exit 0
python - <<'PY' >build/site.txt
from importlib.metadata import requires

from packaging.requirements import Requirement

for requirement in map(Requirement, requires("hdp-train")):
    marker, requirement.marker = requirement.marker, None
    in_extra = [marker is not None and marker.evaluate({"extra": extra}) for extra in ("", "docs", "notebook")]
    if in_extra != [True] * 3 and any(in_extra):
        print(requirement)
PY
python -m pip install -q --disable-pip-version-check -c build/constraints.txt -r build/site.txt
