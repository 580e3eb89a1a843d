"""Small frozen values that tasks exchange: references, jobs, facts, proofs and results."""
