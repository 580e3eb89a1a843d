"""Small frozen values that travel between tasks: references, results and jobs."""
