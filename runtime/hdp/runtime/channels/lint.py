"""``python -m hdp.runtime.channels.lint``: looks at a channel's source and prints what is to be said of it, as JSON.

What `hdp lint-input` runs. The only argument is an item of InputDataConfig, as JSON; ``hosts`` beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hdp.contract import advice
from hdp.contract.errors import HdpError
from hdp.runtime.channels.listing import Listing, source_listing
from hdp.runtime.channels.pipemode import all_rows, sizes_of
from hdp.runtime.channels.spec import ChannelSpec, parse_channels


def lint(item: Mapping[str, Any], hosts: int) -> dict[str, Any]:
    """The source's shape, and lines for the user. Raises ChannelError for a source that no job could use."""
    (spec,) = parse_channels([item], {})
    listing = source_listing(spec)
    shape = advice.Shape.of(_sizes(spec, listing))
    lines = advice.before(shape, spec.mode, hosts, sharded=spec.sharded, record_io=spec.record_io)
    return {"shape": asdict(shape), "summary": str(shape), "lines": [*listing.warnings, *lines]}


def _sizes(spec: ChannelSpec, listing: Listing) -> list[int]:
    if not spec.attributes:
        return [entry.size_bytes for entry in listing.items]
    return [sum(sizes_of(row)) for row in all_rows(spec, listing)]


def main(arguments: Sequence[str]) -> int:
    """Print the answer, or ``{"error": ...}`` with exit code 1."""
    question = json.loads(arguments[0])
    try:
        answer = lint(question["channel"], question["hosts"])
    except (HdpError, OSError, ValueError) as exc:
        print(json.dumps({"error": str(exc)}))
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
