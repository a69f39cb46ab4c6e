"""The core under ThreadSanitizer and under AddressSanitizer with UBSan: random operations, some with failures."""

import native
import pytest

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("sanitizer", native.SANITIZERS)
def test_random_operations_and_failures(sanitizer):
    """20 seeds each; the program verifies every element, and a report of the sanitizer ends it."""
    for mode in ([], ["--chaos"]):
        native.check(native.run(sanitizer, "core_stress", "--seeds", "20", "--ops", "40", *mode))


@pytest.mark.parametrize("sanitizer", native.SANITIZERS)
def test_random_operations_on_device_memory(sanitizer):
    """5 seeds, half of the operations on the memory of a fake driver that was built with the sanitizer too."""
    driver = {"HDP_CUDA_DRIVER": str(native.build(sanitizer, "hdp_fake_cuda")), "HDP_FAKE_CUDA_GBPS": "4"}
    for mode in ([], ["--chaos"]):
        arguments = ["--device", "--seeds", "5", "--ops", "25", *mode]
        native.check(native.run(sanitizer, "core_stress", *arguments, environ=driver))


@pytest.mark.parametrize(
    ("sanitizer", "mistake", "report"),
    [
        ("thread", "data-race", "WARNING: ThreadSanitizer: data race"),
        ("address,undefined", "heap-overflow", "ERROR: AddressSanitizer: heap-buffer-overflow"),
        ("address,undefined", "signed-overflow", "runtime error: signed integer overflow"),
    ],
)
def test_each_sanitizer_is_on(sanitizer, mistake, report):
    """A mistake that the program commits on purpose is reported, and ends it with an error."""
    done = native.run(sanitizer, "core_stress", "--mistake", mistake)
    assert report in done.stderr
    assert done.returncode not in (0, 2)
    assert "committed" not in done.stdout
