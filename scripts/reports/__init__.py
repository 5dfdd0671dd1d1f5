"""Reports that several commands show: tables, comparisons, pictures and Markdown."""
