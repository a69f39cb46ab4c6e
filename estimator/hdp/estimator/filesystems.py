"""Input from a file system of AWS, EFS or FSx for Lustre, which the service mounts on each host."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hdp.estimator.faults import Spoken


class FileSystemInput(Spoken):
    """One input channel that is a folder of a file system; the job needs subnets and security groups that reach it.

    file_system_id: ``fs-...``. file_system_type: "EFS" or "FSxLustre". directory_path: the folder, absolute.
    file_system_access_mode: "ro" or "rw". content_type: of the data, for who asks for it.

    Raises SpecError that lists every fault.
    """

    file_system_id: str = Field(pattern=r"^fs-[0-9a-f]{8,}$", max_length=21)
    file_system_type: Literal["EFS", "FSxLustre"]
    directory_path: str = Field(pattern="^/", max_length=4096)
    file_system_access_mode: Literal["ro", "rw"] = "ro"
    content_type: str | None = Field(None, max_length=256)

    def __init__(
        self,
        file_system_id: str,
        file_system_type: str,
        directory_path: str,
        file_system_access_mode: str = "ro",
        content_type: str | None = None,
    ) -> None:
        where = {"file_system_id": file_system_id, "file_system_type": file_system_type}
        how = {"file_system_access_mode": file_system_access_mode, "content_type": content_type}
        super().__init__(**{**where, "directory_path": directory_path, **how})

    def channel(self, name: str) -> dict[str, Any]:
        """This input as one item of CreateTrainingJob's InputDataConfig."""
        source = {
            "FileSystemId": self.file_system_id,
            "FileSystemType": self.file_system_type,
            "DirectoryPath": self.directory_path,
            "FileSystemAccessMode": self.file_system_access_mode,
        }
        out: dict[str, Any] = {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}}
        return {**out, "ContentType": self.content_type} if self.content_type else out
