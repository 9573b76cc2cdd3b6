"""What the program does with the other parts: plan, carry out, store and compare runs, and judge a change."""
