"""The nouns: what is asked, of whom, on which arrays, and what was answered."""
