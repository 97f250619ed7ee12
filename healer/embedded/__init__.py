"""PostgreSQL, Redis and the process tree of `healer up`."""
