"""The commands: one module, or one folder, for each; none imports another."""
