"""Numbers of a training job, said by its script.

::

    from hdp import metrics

    for step, batch in enumerate(batches):
        ...
        metrics.log(step=step, loss=loss, samples=len(batch))

In a job each call is one line of the rank's output (or one for every 50 metrics), so that it works on every engine,
survives a crash, and keeps its place among what the script prints. Whoever follows the job sees progress instead of
the lines; `job.metrics()` has all of them as a table; `hdp.estimator.compare` takes times of steps from them. Outside
a job a call prints one short line for people.

It needs nothing but Python's own library, and takes some ten microseconds.
"""

from hdp.contract.errors import InvalidMetric
from hdp.metrics.calls import log

__all__ = ["InvalidMetric", "log"]
