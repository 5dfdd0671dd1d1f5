"""What a job is given: values of options as people write them, tables, models, orders and plans."""
