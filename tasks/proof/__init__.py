"""The proof of what a candidate executes, and golden cases for other processors."""
