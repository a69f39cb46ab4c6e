"""Where a job and its logs are in Amazon's console. Pure."""

from __future__ import annotations

from urllib.parse import quote

#: CloudWatch's group of the logs of all training jobs.
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_HOSTS = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}


def job_url(name: str, region: str, partition: str = "aws") -> str:
    """The page of the job."""
    return f"https://{_host(region, partition)}/sagemaker/home?region={region}#/jobs/{name}"


def logs_url(name: str, region: str, partition: str = "aws") -> str:
    """The page of the job's log streams."""
    group = _twice(LOG_GROUP)
    query = _twice(f"?logStreamNameFilter={name}/")
    return (
        f"https://{_host(region, partition)}/cloudwatch/home?region={region}#logsV2:log-groups/log-group/{group}{query}"
    )


def _host(region: str, partition: str) -> str:
    base = _HOSTS.get(partition, "console.aws.amazon.com")
    return f"{region}.{base}"


def _twice(text: str) -> str:
    """CloudWatch's pages have their own escapes behind the fragment: quoted twice, with ``$`` for the outer ``%``."""
    return quote(quote(text, safe=""), safe="").replace("%", "$")
