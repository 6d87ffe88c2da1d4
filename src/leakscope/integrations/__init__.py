"""Frameworks whose updates are recorded and defended."""
