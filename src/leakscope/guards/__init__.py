"""Representations that keep a secret: bounds to train them by, and what is known about them."""
