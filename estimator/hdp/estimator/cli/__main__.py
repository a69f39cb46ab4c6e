"""``python -m hdp.estimator.cli`` is the command `hdp`."""

from hdp.estimator.cli import main

if __name__ == "__main__":
    main()
