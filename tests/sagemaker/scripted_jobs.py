"""SageMaker's training jobs by script: what was created, in which status, with the service's codes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from aws_face import Answer, Face

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1"


@dataclass
class ScriptedJobs:
    """Jobs by name; each is what DescribeTrainingJob answers. A test changes them at will."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)

    def on(self, face: Face) -> ScriptedJobs:
        """Answer at `face`."""
        face.scripts |= {
            "CreateTrainingJob": self.create,
            "DescribeTrainingJob": self.describe,
            "StopTrainingJob": self.stop,
            "ListTrainingJobs": self.list,
        }
        return self

    def add(self, name: str, **more: Any) -> dict[str, Any]:
        """A job that somebody else has made."""
        now = time.time()
        self.jobs[name] = {
            "TrainingJobName": name,
            "TrainingJobArn": f"arn:aws:sagemaker:eu-west-1:123456789012:training-job/{name}",
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Training",
            "CreationTime": now,
            "LastModifiedTime": now,
            "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": IMAGE},
            "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
            "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
            "ModelArtifacts": {"S3ModelArtifacts": f"s3://b/{name}/output/model.tar.gz"},
            **more,
        }
        return self.jobs[name]

    def end(self, name: str, status: str, **more: Any) -> None:
        """Have a job end."""
        now = time.time()
        step = {"Status": status, "StartTime": now, "EndTime": now, "StatusMessage": f"now {status}"}
        times = {"TrainingStartTime": now - 100, "TrainingEndTime": now - 60, "TrainingTimeInSeconds": 100}
        steps = [*self.jobs[name].get("SecondaryStatusTransitions", ()), step]
        ended = {"TrainingJobStatus": status, "SecondaryStatus": status, "SecondaryStatusTransitions": steps}
        self.jobs[name] |= {**ended, **times, **more}

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["TrainingJobName"]
        if name in self.jobs:
            raise Answer("ResourceInUse", "Training job names must be unique within an AWS account and region")
        self.created.append(asked)
        return {"TrainingJobArn": self.add(name, **{k: v for k, v in asked.items() if k != "Tags"})["TrainingJobArn"]}

    def describe(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["TrainingJobName"] not in self.jobs:
            raise Answer("ValidationException", "Requested resource not found.")
        return self.jobs[asked["TrainingJobName"]]

    def stop(self, asked: dict[str, Any]) -> dict[str, Any]:
        job = self.describe(asked)
        if job["TrainingJobStatus"] != "InProgress":
            raise Answer("ValidationException", "The request was rejected because the training job has ended")
        self.end(asked["TrainingJobName"], "Stopped")
        return {}

    def list(self, asked: dict[str, Any]) -> dict[str, Any]:
        names = sorted(self.jobs, key=lambda name: -self.jobs[name]["CreationTime"])
        start, count = int(asked.get("NextToken", "0")), asked["MaxResults"]
        kept = ("TrainingJobName", "TrainingJobArn", "CreationTime", "LastModifiedTime", "TrainingJobStatus")
        rows = [{key: self.jobs[name][key] for key in kept} for name in names[start : start + count]]
        more = {"NextToken": str(start + count)} if start + count < len(names) else {}
        return {"TrainingJobSummaries": rows, **more}
