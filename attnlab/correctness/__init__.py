"""From raw samples to statements: errors, intervals, verdicts."""
