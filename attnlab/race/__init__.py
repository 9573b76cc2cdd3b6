"""The instruments: contenders in processes of their own, raced round by round."""
