"""What to do about errors that SageMaker users meet often, by what the service says. Pure.

Rows are tried in order; the first that matches an error's code and message, or a job's FailureReason, is the remedy.
"""

from __future__ import annotations

import re

_ROWS: tuple[tuple[str, str], ...] = (
    (
        r"ExpiredToken|RequestExpired|TokenRefreshRequired|security token included in the request is expired|SSOToken"
        r"|TokenRetrieval|CredentialRetrieval",
        "the credentials have expired: renew them (`aws sso login`, or new values of AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN); a job that runs goes on meanwhile",
    ),
    (
        r"NoCredentials|Unable to locate credentials|UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId"
        r"|SignatureDoesNotMatch|PartialCredentials",
        "AWS doesn't know the credentials: check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run "
        "`aws configure`; `aws sts get-caller-identity` shows who you are",
    ),
    (
        r"ResourceLimitExceeded|service limit|(?<!disk )quota",
        "the account's quota is too small: in Service Quotas, Amazon SageMaker, ask for more of '<instance type> for "
        "training job usage' (spot and warm pools have quotas of their own), or use fewer or other instances",
    ),
    (
        r"CapacityError|InsufficientCapacity|capacity.{0,80}(not available|unavailable|insufficient)"
        r"|[Uu]nable to provision requested ML compute capacity",
        "AWS has too few of these instances now: try again later (max_retry_attempts does it for you), another "
        "instance type or region, subnets in more zones, or a training plan",
    ),
    (
        r"PassRole",
        "you may not hand this role to SageMaker: whoever calls fit needs iam:PassRole for it",
    ),
    (
        r"[Cc]ould not assume role|AssumeRole|is not a valid role|role .{0,200}(does not exist|cannot be found|invalid)"
        r"|NoSuchEntity",
        "SageMaker can't take the role: check its ARN, and that its trust policy names sagemaker.amazonaws.com; a role "
        "made a moment ago needs some seconds",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|BucketRegionError"
        r"|bucket.{0,120}(same|different|another|wrong) region|not in region|should be in region",
        "a bucket is in another region than the job: copy the data (`aws s3 sync`), or run the job where the bucket is "
        "(AWS_REGION)",
    ),
    (
        r"NoSuchBucket|bucket does not exist",
        "the bucket doesn't exist: check its name, or make it with `aws s3 mb`",
    ),
    (
        r"No S3 objects found|NoSuchKey|no objects found",
        "there is nothing at the channel's URI: check its prefix (`aws s3 ls`), and that data are where the job looks",
    ),
    (
        r"exec format error|no matching manifest|platform .{0,60}(does not match|not supported)"
        r"|image.{0,80}architecture|architecture.{0,80}image",
        "the image was built for another processor than the instance has: build it with "
        "`docker buildx build --platform linux/amd64` (linux/arm64 for Graviton types)",
    ),
    (
        r"CannotPullContainer|manifest unknown|(image|repository).{0,200}(not found|does not exist|cannot be found)"
        r"|cannot (find|pull).{0,60}image|RepositoryNotFound|ecr:[A-Z]\w+",
        "the image can't be pulled: check image_uri, its tag and region, and that the role may read the repository "
        "(ecr:BatchGetImage, ecr:GetDownloadUrlForLayer, ecr:GetAuthorizationToken)",
    ),
    (
        r"OutOfMemory|out of memory|SIGKILL|exit code:? 137|code 137",
        "memory ran out, probably: use a smaller batch, fewer ranks a host, or an instance type with more memory",
    ),
    (
        r"No space left on device|disk .{0,40}full|disk quota",
        "the disk is full: raise volume_size, or stream the channel with input_mode='FastFile'",
    ),
    (
        r"MaxRuntimeExceeded|MaxWaitTimeExceeded|max(imum)? (run|wait)\s?time",
        "the time was up: raise max_run (and max_wait with spot), and write checkpoints to go on from",
    ),
    (
        r"AccessDenied|AccessDeniedException|not authorized to perform|Forbidden|\b403\b",
        "a permission is missing: the message says which action; for S3 the job's role needs s3:GetObject, "
        "s3:PutObject and s3:ListBucket on the buckets, and kms:Decrypt where a key of yours encrypts them",
    ),
    (
        r"EndpointConnection|Could not connect|ConnectTimeout|ReadTimeout|ConnectionClosed|Name or service",
        "the service can't be reached: check the network, the region, and the endpoint (AWS_ENDPOINT_URL)",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), remedy) for pattern, remedy in _ROWS)


def remedy_for(text: str) -> str | None:
    """What to do about `text`, an error or a failure reason; None: nobody knows."""
    return next((remedy for pattern, remedy in _COMPILED if pattern.search(text)), None)
