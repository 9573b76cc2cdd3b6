"""What `benchmarks/peers.py` is made of: pairs, tools as people use them, scores, the page and its figure."""
