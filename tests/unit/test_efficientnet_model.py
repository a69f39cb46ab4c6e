"""The example's EfficientNets have the published numbers of parameters."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the example needs torch")
sys.path.append(str(Path(__file__).parents[2] / "examples/efficientnet"))

from efficientnet_model import efficientnet  # noqa: E402


@pytest.mark.parametrize(("name", "parameters"), [("b0", 5_288_548), ("b1", 7_794_184), ("b4", 19_341_616)])
def test_networks_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    """Those of torchvision's networks of these names, with 1,000 classes."""
    with torch.device("meta"):
        assert sum(p.numel() for p in efficientnet(name).parameters()) == parameters


def test_images_become_logits_of_the_classes() -> None:
    assert efficientnet("tiny", classes=7).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match="no EfficientNet is called 'b9'; there are b0, b1, b2, b3, b4 and tiny"):
        efficientnet("b9")
