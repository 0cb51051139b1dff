"""What runs a loop tree."""
