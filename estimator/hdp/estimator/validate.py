"""Checks a job request against botocore's own model of CreateTrainingJob, offline.

botocore itself checks required members, unknown members and types. It accepts the mode ``Fastfile``, the job name
``bad_name`` and a value of 2,501 characters; this walker also checks enumerations, patterns, and the lengths of
texts, lists and maps. Botocore is imported on the first call; no credentials and no network are used.

Relaxations for engines on this machine (`Relaxed`): URIs may be ``file://``, instance types aren't Amazon's, and
``OutputDataConfig.S3OutputPath`` may be left out (the engine then keeps the artifacts with the job).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdp.estimator.faults import not_one_of, seen, shown
from hdp.estimator.spelling import did_you_mean

_JAVA = ((r"\p{Alnum}", "A-Za-z0-9"), (r"\p{L}", r"\w"), (r"\p{N}", r"\d"), (r"\p{Z}", r"\s"))
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "boolean": ((bool,), "True or False"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "list": ((list, tuple), "a list"),
    "map": ((Mapping,), "a dictionary"),
    "structure": ((Mapping,), "a dictionary"),
    "timestamp": ((int, float), "Unix seconds"),
}


@dataclass(frozen=True)
class Relaxed:
    """What this engine doesn't ask for. Names are those of botocore's shapes."""

    file_uris: bool = False
    any_instance_type: bool = False
    no_output_path: bool = False


def faults_of(training_job: Mapping[str, Any], relaxed: Relaxed | None = None) -> list[str]:
    """One line for each fault of `training_job`, the arguments of CreateTrainingJob; each begins with its path."""
    return faults_of_input("sagemaker", "CreateTrainingJob", training_job, relaxed)


def faults_of_input(
    service: str, operation: str, value: Mapping[str, Any], relaxed: Relaxed | None = None
) -> list[str]:
    """The same for the arguments of any operation of a service that botocore knows."""
    walk = _Walk(operation, relaxed or Relaxed(), [])
    walk.value(service_model(service).operation_model(operation).input_shape, value, "")
    return walk.faults


def instance_types() -> tuple[str, ...]:
    """Every instance type that the service's model has."""
    shape = service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    return tuple(shape.members["ResourceConfig"].members["InstanceType"].enum)


@functools.cache
def service_model(service: str) -> Any:
    """botocore's model of `service`, a `botocore.model.ServiceModel`."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


@dataclass(frozen=True)
class _Walk:
    operation: str
    relaxed: Relaxed
    faults: list[str]

    def value(self, shape: Any, value: Any, path: str) -> None:
        """Check `value` and all below it."""
        if not _has_type(shape, value):
            self.faults.append(f"{path or 'request'} is {seen(value)}; expected {_TYPES[shape.type_name][1]}")
            return
        match shape.type_name:
            case "structure":
                self._structure(shape, value, path)
            case "list":
                self._length(shape, len(value), path, "items")
                for i, item in enumerate(value):
                    self.value(shape.member, item, f"{path}[{i}]")
            case "map":
                self._map(shape, value, path)
            case "string":
                self._text(shape, value, path)
            case _:
                self._number(shape, value, path)

    def _structure(self, shape: Any, value: Mapping[str, Any], path: str) -> None:
        for name in shape.required_members:
            if name not in value and not (self.relaxed.no_output_path and name == "S3OutputPath"):
                self.faults.append(f"{_join(path, name)} is missing; {self.operation} needs it")
        for name, member in value.items():
            if name in shape.members:
                self.value(shape.members[name], member, _join(path, name))
            else:
                hint = did_you_mean(name, shape.members)
                self.faults.append(f"{_join(path, str(name))} is no part of {self.operation}{hint}")

    def _map(self, shape: Any, value: Mapping[Any, Any], path: str) -> None:
        self._length(shape, len(value), path, "entries")
        for key, item in value.items():
            self.value(shape.key, key, f"{path}: key {shown(key)}")
            self.value(shape.value, item, f"{path}[{shown(key)}]")

    def _text(self, shape: Any, value: str, path: str) -> None:
        if shape.enum:
            if value not in shape.enum and not self._any_type(shape):
                self.faults.append(not_one_of(path, value, shape.enum))
            return
        self._length(shape, len(value), path, "characters")
        pattern = shape.metadata.get("pattern")
        if pattern and not self._file_uri(shape, value) and not _full_match(pattern, value):
            self.faults.append(f"{path}: {shown(value)} doesn't have the form {pattern}")

    def _number(self, shape: Any, value: float, path: str) -> None:
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if low is not None and value < low:
            self.faults.append(f"{path} is {shown(value)}; expected {low} or more")
        if high is not None and value > high:
            self.faults.append(f"{path} is {shown(value)}; expected {high} or less")

    def _length(self, shape: Any, length: int, path: str, unit: str) -> None:
        low, high = shape.metadata.get("min", 0), shape.metadata.get("max")
        if length < low:
            self.faults.append(f"{path} has {length} {unit}; at least {low}")
        if high is not None and length > high:
            self.faults.append(f"{path} has {length} {unit}; at most {high}")

    def _any_type(self, shape: Any) -> bool:
        return self.relaxed.any_instance_type and shape.name == "TrainingInstanceType"

    def _file_uri(self, shape: Any, value: str) -> bool:
        return self.relaxed.file_uris and shape.name == "S3Uri" and value.startswith("file:///")


def _has_type(shape: Any, value: object) -> bool:
    if shape.type_name not in _TYPES:
        return True
    return isinstance(value, _TYPES[shape.type_name][0]) and isinstance(value, bool) == (shape.type_name == "boolean")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _full_match(pattern: str, value: str) -> bool:
    """Whether the service's (Java) pattern matches; classes that Python lacks become wider ones, never narrower."""
    for java, python in _JAVA:
        pattern = pattern.replace(java, python)
    return re.fullmatch(pattern, value) is not None
