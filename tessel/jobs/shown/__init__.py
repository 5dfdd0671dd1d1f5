"""What a person is shown of a plan: tables, explanations, pictures, pages and reports."""
