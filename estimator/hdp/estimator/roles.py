"""IAM roles: an ARN is sent as it is; a name, which only IAM can resolve, has a stand-in in plans. Pure."""

from __future__ import annotations

import re

#: Stands for a role on engines that need none, because CreateTrainingJob has no shape without one.
LOCAL_ROLE = "arn:aws:iam::000000000000:role/local"

_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[A-Za-z0-9_+=,.@/-]+")
_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")


def is_arn(role: str | None) -> bool:
    """Whether `role` is the ARN of an IAM role."""
    return _ARN.fullmatch(role or "") is not None


def is_name(role: str | None) -> bool:
    """Whether `role` can be the name of an IAM role, as v2 takes it."""
    return _NAME.fullmatch(role or "") is not None


def stand_in(name: str) -> str:
    """What stands for the ARN of the role called `name`: account 000000000000 is nobody's."""
    return f"arn:aws:iam::000000000000:role/{name}"
