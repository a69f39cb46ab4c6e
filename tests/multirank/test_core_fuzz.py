"""A fuzzer of what the core reads from sockets: jobs whose messages are tampered with or made up."""

import os

import native
import pytest

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]

#: Of fuzzing, for all sanitizers together.
SECONDS = float(os.environ.get("HDP_TEST_FUZZ_SECONDS", "30"))
#: A longer run should see other seeds than the one before.
FIRST = os.environ.get("HDP_TEST_FUZZ_FIRST", "1")


@pytest.mark.timeout(900 + 2 * SECONDS)
@pytest.mark.parametrize("sanitizer", native.SANITIZERS)
def test_nothing_that_arrives_does_harm(sanitizer):
    """No crash, hang, wrong result or silent failure; memory is bounded. A failing seed says how to run it alone."""
    seconds = SECONDS / len(native.SANITIZERS)
    arguments = ["--seconds", str(seconds), "--first", FIRST]
    done = native.run(sanitizer, "core_fuzz", *arguments, timeout=seconds + 280)
    print(done.stdout.splitlines()[-1])
    native.check(done)
