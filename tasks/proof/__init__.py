"""What a candidate executes, and what it computes on other processors."""
