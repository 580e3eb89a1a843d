"""nightquant's search beside an exhaustive measurement and beside the searches of other libraries."""
