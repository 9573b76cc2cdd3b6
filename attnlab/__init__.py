"""attnlab: which attention should I run here, how fast, how big, and is it right?"""
