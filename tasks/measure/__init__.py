"""Measurements of candidates: quality, speed, memory, capacity, executed instructions and sensitive layers."""
