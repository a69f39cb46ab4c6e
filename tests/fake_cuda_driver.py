"""Where libhdp_fake_cuda.so is (runtime/csrc/tests/fake_cuda.h): it is built with the core, and not installed."""

from pathlib import Path

from hdp.collectives import library

_BUILD = Path(__file__).parents[1] / "build"


def path():
    """The fake driver beside the core in use, or that of `make setup`. Raises FileNotFoundError."""
    places = [library.library_path().parent, *sorted(_BUILD.glob("py3-none-*/")), _BUILD / "dev"]
    for place in places:
        if (found := place / "libhdp_fake_cuda.so").exists():
            return found
    raise FileNotFoundError(f"libhdp_fake_cuda.so is in none of {', '.join(map(str, places))}; run `make setup`")
