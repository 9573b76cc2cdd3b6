"""From samples to statements: intervals, verdicts, growth."""
