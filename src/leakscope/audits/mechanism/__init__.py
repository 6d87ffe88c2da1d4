"""What one step of DP-SGD gives away about one attribute."""
