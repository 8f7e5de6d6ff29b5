"""The messages of Spark's UDF worker protocol, made from the .proto files that PySpark ships."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import pyspark

from taskmesh.spark.steps.errors import SparkMissing

try:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClassesForFiles
    from grpc_tools import protoc
except ModuleNotFoundError as missing:
    raise SparkMissing(
        f"a UDF worker for Spark needs {missing.name}: pip install 'taskmesh[spark,spark-udf-worker]'"
    ) from missing

PACKAGE: Final = "org.apache.spark.udf.worker"
SERVICE: Final = f"{PACKAGE}.UdfWorker"
_JAR: Final = "spark-udf-worker-proto_*.jar"


class Protocol:
    """The protocol as the installed Spark publishes it: no copy of it can be out of date here.

    Raises:
        SparkMissing: this Spark has no such protocol, or its files cannot be read.
    """

    def __init__(self) -> None:
        files = FileDescriptorSet.FromString(_compiled(_jar()))
        pool = DescriptorPool()  # its own: `common.proto` is a name that others may have
        for file in files.file:
            pool.Add(file)
        self._messages = GetMessageClassesForFiles([file.name for file in files.file], pool)

    def message(self, name: str) -> Any:
        """The class of a message, such as "UdfRequest"."""
        return self._messages[f"{PACKAGE}.{name}"]


def _jar() -> Path:
    """Return the jar of this Spark that holds the protocol."""
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    found = sorted(jars.glob(_JAR))
    if not found:
        raise SparkMissing(f"no {_JAR} in {jars}: Spark has the UDF worker protocol from 4.3 on")
    return found[-1]


def _compiled(jar: Path) -> bytes:
    """Return the serialized FileDescriptorSet of a jar's .proto files."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.endswith(".proto")]
        archive.extractall(folder, names)
        target = Path(folder, "descriptors")
        if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={target}", *names]):
            raise SparkMissing(f"protoc cannot read the .proto files of {jar}")
        return target.read_bytes()
