"""Drawn inputs for detectors, written by someone who has not read the detectors: step times and metrics.

Every effect is drawn from a numpy Generator given by parameter; the same generator state gives the same
world.
"""
