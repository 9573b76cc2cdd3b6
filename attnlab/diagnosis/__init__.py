"""What attention does in a trained model: captured from a call, measured head by head, held against a null."""
