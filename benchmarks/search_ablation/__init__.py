"""What each phase of the schedule search is worth: the searches without it."""
