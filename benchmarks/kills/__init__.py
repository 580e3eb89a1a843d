"""Nights that are killed at random moments of every stage: what they leave behind, and whether the next one goes on."""
