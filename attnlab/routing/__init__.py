"""What a run found, put to use: each call is sent to the backend that was fastest and right where it was measured."""
