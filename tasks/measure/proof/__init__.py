"""Record the code that candidates execute, and create golden cases for checks on other processors."""
