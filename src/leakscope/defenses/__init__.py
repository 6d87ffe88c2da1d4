"""What a client does to its gradient before it leaves, and to its training."""
