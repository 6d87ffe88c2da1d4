"""What a transcript means: arithmetic with intervals."""
