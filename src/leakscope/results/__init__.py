"""What was measured, as it is kept, averaged, gated and compared."""
