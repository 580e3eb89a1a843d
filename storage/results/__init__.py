"""Results: typed Parquet tables, the DuckDB catalog over them, and what people read from it."""
