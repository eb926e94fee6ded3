"""Generated stubs of the version 1 contract; see planner.proto."""
