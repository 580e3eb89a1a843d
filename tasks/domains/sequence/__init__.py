"""One recurrent model on one random sequence."""
