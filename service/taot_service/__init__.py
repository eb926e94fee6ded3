"""The planner service: sessions, the solver, the gRPC server and the HTTP side."""
