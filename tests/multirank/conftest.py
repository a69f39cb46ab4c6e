import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster

_clusters = {}


@pytest.fixture
def cluster(request):
    """A cluster that tests of the same sizes share: parametrise indirectly with the sizes."""
    sizes = tuple(request.param)
    if sizes not in _clusters:
        _clusters[sizes] = Cluster(list(sizes))
    return _clusters[sizes]


@pytest.fixture
def own_cluster(request):
    """A cluster that one test may break."""
    with Cluster(list(request.param)) as made:
        yield made


def pytest_sessionfinish():
    for made in _clusters.values():
        made.close()
    _clusters.clear()
