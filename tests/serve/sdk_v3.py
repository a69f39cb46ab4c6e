"""Run by an interpreter with SageMaker's SDK v3: trains the example through ModelTrainer, prints what came of it.

python sdk_v3.py SOURCE_DIR
"""

import json
import sys

import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, OutputDataConfig, SourceCode
from sagemaker.train.distributed import Torchrun

trainer = ModelTrainer(
    training_image="000000000000.dkr.ecr.eu-west-1.amazonaws.com/train:1",
    role="arn:aws:iam::000000000000:role/Trainer",
    source_code=SourceCode(source_dir=sys.argv[1], entry_script="train.py"),
    compute=Compute(instance_type="ml.g5.xlarge", instance_count=2),
    distributed=Torchrun(process_count_per_node=1),
    hyperparameters={"max-steps": 5, "dist": "gloo"},
    output_data_config=OutputDataConfig(s3_output_path="s3://bucket/v3"),
    sagemaker_session=Session(boto_session=boto3.Session(), default_bucket="bucket"),
    base_job_name="v3",
)
channels = [InputData(channel_name=name, data_source=f"s3://bucket/digits/{name}/") for name in ("training", "test")]
trainer.train(input_data_config=channels)
job = trainer._latest_training_job
result = {"name": job.training_job_name, "model": job.model_artifacts.s3_model_artifacts}
print("RESULT", json.dumps(result))
