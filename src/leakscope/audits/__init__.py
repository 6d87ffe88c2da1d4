"""The kinds of audit, a folder each."""
