"""Pages: pictures, words and the shell, whatever kind of audit they tell of."""
