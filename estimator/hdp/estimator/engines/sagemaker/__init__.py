"""The SageMaker engine: managed training jobs in the user's own AWS account, by boto3 alone.

`engine.SageMakerEngine` is the face. Below it: `aws` has sessions and clients; `asking` makes one call, and lives with
throttling, outages and expired credentials; `submit` makes a planned request a job (`resolve`, `uploads`); `cloudwatch`
reads the logs of all hosts; `preflight` checks what is free to check; `remedies` knows what to do about common errors.
Importing these modules loads no boto3.
"""
