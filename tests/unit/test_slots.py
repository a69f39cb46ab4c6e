"""How many chunks a host has in transfer at once."""

from pathlib import Path

import pytest

from hdp.collectives import server_config
from hdp.collectives.server_config import slots_here
from hdp.contract.errors import InvalidCollective


@pytest.mark.parametrize(("there", "expected"), [(True, 16), (False, 4)])
def test_more_where_there_are_gpus(tmp_path, monkeypatch, there, expected):
    """By the file that NVIDIA's driver makes; what the user says goes before it."""
    driver = tmp_path / "nvidiactl"
    if there:
        driver.touch()
    monkeypatch.setattr(server_config, "_NVIDIA", Path(driver))
    assert slots_here({}) == expected
    assert slots_here({"HDP_SLOTS": "7"}) == 7


@pytest.mark.parametrize("value", ["1", "257", "four", "-4", "4.0", " 4", "٤"])
def test_a_wrong_number_is_refused(value):
    with pytest.raises(InvalidCollective, match=r"\$HDP_SLOTS is .*; expected a whole number from 2 to 256"):
        slots_here({"HDP_SLOTS": value})
