"""The planner as the ranks see it: the leader's link to it, reports, and the step record that all ranks share."""
