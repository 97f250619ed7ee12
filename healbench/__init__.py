"""HealBench: recordings of faults with what is true of them, a scorer, and entrants."""
