"""The interactive pages of schedules and of records: their data, and the scripts and style that show them."""
