"""One file for each experiment: what varies, what is measured, and what theory predicts."""
