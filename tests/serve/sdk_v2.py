"""Run by an interpreter with SageMaker's SDK v2: trains the example, attaches to the job, prints what came of it.

python sdk_v2.py SOURCE_DIR
"""

import json
import sys

import sagemaker
from sagemaker.pytorch import PyTorch

session = sagemaker.Session(default_bucket="bucket")
estimator = PyTorch(
    entry_point="train.py",
    source_dir=sys.argv[1],
    role="Trainer",
    framework_version="2.2.0",
    py_version="py310",
    instance_count=2,
    instance_type="ml.p4d.24xlarge",
    distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
    hyperparameters={"epochs": 15, "dist": "smddp"},
    sagemaker_session=session,
    tags=[{"Key": "team", "Value": "vision"}],
)
estimator.fit({"training": "s3://bucket/digits/training/", "test": "s3://bucket/digits/test/"})
name = estimator.latest_training_job.name
attached = PyTorch.attach(name, sagemaker_session=session)
print("RESULT", json.dumps({"name": name, "model": estimator.model_data, "attached": attached.model_data}))
