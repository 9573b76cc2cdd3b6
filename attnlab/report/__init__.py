"""From stored results to a page that a person reads."""
