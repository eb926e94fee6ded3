"""What training measures of itself, and what is decided from it: rates, gains, layers switched off."""
