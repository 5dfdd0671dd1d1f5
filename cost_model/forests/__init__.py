"""Forests of XGBoost: how they are trained, and how they are kept in files and read with care."""
