"""Rules of options that go together, a family of commands per module."""
