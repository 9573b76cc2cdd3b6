"""What is measured: one file an implementation; none imports another."""
