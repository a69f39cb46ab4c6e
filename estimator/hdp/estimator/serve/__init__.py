"""`hdp serve`: the local engine behind the HTTP API of SageMaker's training jobs and of CloudWatch Logs, on loopback.

So that boto3, SageMaker's own SDKs and our SageMaker engine can be tried out against jobs that really run, change
state, stop and fail. Who owns what:

* `server` has the sockets: AWS JSON 1.1 in and out, one thread a connection; `peers` says who may connect;
* `api` finds the operation of a call and checks its arguments against botocore's own model;
* `training`, `listing` and `tags` are SageMaker's operations, `events` and `streams` those of Logs;
* `records` keeps, in the job's own folder, what the API changes about a job; everything else is the local engine's.

Nothing is kept in memory that isn't on disk, so the server may end and start again while jobs go on.
"""
