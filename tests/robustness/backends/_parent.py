"""What is imported before processes are forked for a faulty backend: its fault strikes here, WHEN=parent."""

import faulty

faulty.strike("parent")
