"""A benchmark on a processor with fewer instruction sets than this one."""
