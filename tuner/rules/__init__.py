"""Rules that propose candidate partitions, and combinators that build rules from rules."""
