"""What several commands show: tables, comparisons, pictures and Markdown reports."""
