"""What is tuned for: names of targets, what they resolve to here, and what their devices can do at best."""
