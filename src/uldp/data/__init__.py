"""Data: records with owners, allocations, schemas of public constants, tables and built-in sets."""
