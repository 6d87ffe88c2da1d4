"""How an adversary turns what it knows into guesses."""
