"""Records as files: JSON Lines of this project, and databases of TVM's MetaSchedule."""
