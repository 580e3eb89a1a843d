"""The stages of the work as plain functions; torch lives here and nowhere else."""
