"""A rank of the tests of training: ``training_ranks.py CASE...``. Rank 0 compares with a training of its own."""

import sys
import time
import traceback

import equal_cases
import model_cases
import option_cases
import scale_cases
import tape_cases

import hdp.tensorflow as dist

CASES = {
    name.removeprefix("case_"): case
    for module in (equal_cases, option_cases, model_cases, tape_cases, scale_cases)
    for name, case in vars(module).items()
    if name.startswith("case_")
}


def main():
    dist.init()
    for name in sys.argv[1:]:
        try:
            CASES[name]()
        except BaseException:
            print(f"rank {dist.rank()}: case {name} failed")
            traceback.print_exc()
            sys.stdout.flush()
            raise
        print(f"{name} is fine, after {time.process_time():.0f} s of CPU", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
