"""What one GPU allows to be measured, in one resumable run with a time budget, and one report."""
