"""Views of a plan: tables, explanations, pictures, pages and reports."""
