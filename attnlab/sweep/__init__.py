"""A plan over many machines: cut into shards, carried out by jobs, and put together again."""
