"""Generates the Python stubs of planner.proto.

Run as `make proto`; the stubs are committed and a test compares them with a fresh run. Usage:
`python proto/generate.py [OUTPUT_ROOT]`, by default in place.
"""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).parent


def generate(output_root: Path) -> None:
    """Writes planner_pb2.py, its .pyi and planner_pb2_grpc.py below `output_root`."""
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO_ROOT}",
            f"--proto_path={resources.files('grpc_tools') / '_proto'}",
            f"--python_out={output_root}",
            f"--pyi_out={output_root}",
            f"--grpc_python_out={output_root}",
            str(PROTO_ROOT / "taot_api" / "v1" / "planner.proto"),
        ]
    )
    if status:
        sys.exit(status)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTO_ROOT)
