"""Find a whole schedule of least makespan: bounds, first schedules, local search, and proofs."""
