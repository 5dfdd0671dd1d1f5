"""Records in SQLite or PostgreSQL: tables, look-ups, upgrades, repairs."""
