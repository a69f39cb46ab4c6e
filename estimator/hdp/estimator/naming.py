"""Names of jobs: checked when given, made from a base and the time when not."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from hdp.contract.files import JOB_NAME
from hdp.estimator.faults import seen, shown

MAX_CHARS = 63


def base_name(base: str | None, image_uri: str | None, entry_point: str | None) -> str:
    """What a job's name begins with: base_job_name, else the image's repository (as in v2), else the script's name."""
    image = re.sub(r"[:@].*", "", (image_uri or "").rpartition("/")[2])
    script = re.sub(r"\.[^.]*$", "", (entry_point or "").replace("\\", "/").rpartition("/")[2])
    for candidate in (base, image, script):
        clean = sanitised(candidate or "")
        if clean:
            return clean
    return "job"


def sanitised(text: str) -> str:
    """`text` as part of a job name: letters, digits and single inner hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def dated(base: str, now: datetime) -> str:
    """``<base>-YYYY-MM-DD-HH-MM-SS-mmm`` in GMT; the base is cut so that all has at most `MAX_CHARS` characters."""
    utc = now.astimezone(timezone.utc)
    stamp = utc.strftime("%Y-%m-%d-%H-%M-%S-") + f"{utc.microsecond // 1000:03d}"
    return f"{base[: MAX_CHARS - len(stamp) - 1].rstrip('-')}-{stamp}"


def fault(name: object) -> str | None:
    """What is wrong with a given job name; None for nothing."""
    if not isinstance(name, str):
        return f"job_name is {seen(name)}; expected text"
    if len(name) > MAX_CHARS:
        return f"job_name={shown(name)} has {len(name)} characters; at most {MAX_CHARS}: shorten it"
    if JOB_NAME.fullmatch(name):
        return None
    clean = sanitised(name)
    hint = f"; did you mean {clean!r}?" if clean else ""
    return f"job_name={name!r}: a job's name has letters, digits and inner '-' only, and begins with no '-'{hint}"
