"""What theory predicts: pure functions of numbers, in float64."""
