"""A fleet in simulated time under the production walk: scenarios, faults, people, and the score card."""
