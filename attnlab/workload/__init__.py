"""The nouns: what is asked, on which arrays, and what was answered."""
