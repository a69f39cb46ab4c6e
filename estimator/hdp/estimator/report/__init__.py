"""One page about one job: see `hdp.estimator.report.facts.JobReport`."""
