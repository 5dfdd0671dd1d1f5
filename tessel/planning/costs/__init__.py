"""What stages, hops, collectives and whole steps of a layout take and hold."""
