"""A store of a million records: how long it takes to fill, ask and write it down."""
