"""The backends that come with attnlab: one file per implementation; none imports another."""
