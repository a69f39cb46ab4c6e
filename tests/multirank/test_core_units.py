"""The checksum and TLS of the core by themselves: as they are used, and under the sanitizers."""

import native
import pytest

from hdp.collectives.openssl import libssl_path

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("sanitizer", "mib"), [("", 256), ("address,undefined", 64), ("thread", 32)])
def test_checksum_and_tls(sanitizer, mib):
    """The program checks itself; a report of the sanitizer ends it. It prints what it measured."""
    libssl = libssl_path() or "libssl.so.3"
    done = native.run(sanitizer, "core_units", "--libssl", libssl, "--mib", str(mib))
    print(done.stdout)
    native.check(done)
    assert done.stdout.endswith("ok\n")
