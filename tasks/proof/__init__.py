"""Record which code candidates execute, and create golden cases for checks on other processors."""
