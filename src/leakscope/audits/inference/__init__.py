"""What gradients tell about the records behind them."""
