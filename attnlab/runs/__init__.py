"""What the program does with the rest: plan, execute, store, compare, check, call."""
