"""CP-SAT models of the searches' problems: the general solver that they are measured against."""
