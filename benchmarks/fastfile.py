"""FastFile against the bare client in the same run, and against rclone's mount and s3fs where they are installed.

    sudo python benchmarks/fastfile.py                  # all cases
    sudo python benchmarks/fastfile.py sequential --repeats 5 --json build/fastfile.json --plot build/fastfile.png

The store is nginx on loopback (`s3like`): as fast as it goes, and, the S3-like port, with 25 ms to the first byte and
90 MB/s a connection. Bytes are compared before anything is timed. "FastFile, from memory" is its face alone, without a
store; "bound" is what the processors allow if server, client, mount and reader each cost what they cost alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastfile_cases import CASES, Plan, check, make_data
from fastfile_mounts import PEERS, Site, installed
from fastfile_report import line, plot, show, write_json
from s3like import S3Like, missing
from training_report import folder_faults


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases."""
    options = _options(arguments)
    faults = [*([f"this needs {missing()}"] if missing() else []), *folder_faults(options.json, options.plot)]
    if faults:
        sys.exit("\n".join(faults))
    rows = []
    with tempfile.TemporaryDirectory(prefix="hdp-fastfile-") as name:
        work = Path(name)
        work.chmod(0o755)
        make_data(work / "buckets", options.large_mib, options.files)
        with S3Like(work / "buckets", work / "nginx") as server:
            server.list_bucket("large")
            server.list_bucket("small")
            site, plan = Site(server, work), Plan(options.repeats, installed(options.peers))
            check(site)
            for case in options.cases or CASES:
                for row in CASES[case](site, plan):
                    rows.append(row)
                    print(line(row), file=sys.stderr, flush=True)
    show(rows)
    if options.json:
        write_json(rows, options.json)
    if options.plot:
        plot(rows, options.plot)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[], help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peers", nargs="*", choices=[*PEERS, []], default=PEERS, help="those that aren't here are left out"
    )
    parser.add_argument("--large-mib", type=int, default=1024, help="size of the large file")
    parser.add_argument("--files", type=int, default=2000, help="number of small files, of 20 KiB")
    parser.add_argument("--json", type=Path, help="all results, with every value")
    parser.add_argument("--plot", type=Path, help="the same as a picture (PNG, SVG, PDF)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
