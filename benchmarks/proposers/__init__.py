"""Who proposes the schedules of a kernel, compared at equal numbers of trials."""
