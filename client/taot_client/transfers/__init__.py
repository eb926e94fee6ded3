"""Guest weights on their way out and guest gradients on their way home: slots, schedules and movers."""
