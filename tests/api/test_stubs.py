import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROTO_ROOT = Path(__file__).parents[2] / "proto"


def _load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", PROTO_ROOT / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["planner_pb2.py", "planner_pb2.pyi", "planner_pb2_grpc.py"])
def test_committed_stubs_are_what_the_proto_generates(name, tmp_path):
    _load_generator().generate(tmp_path)
    fresh = (tmp_path / "taot_api" / "v1" / name).read_text()
    committed = (PROTO_ROOT / "taot_api" / "v1" / name).read_text()
    assert committed == fresh, f"{name} is not what planner.proto generates: run `make proto`"
