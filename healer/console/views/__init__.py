"""View models: pure functions from model values to small structs that templates print without thinking."""
