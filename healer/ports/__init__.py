"""What healer needs from outside, as Protocols over `healer.model` alone.

Import each from its module: `from healer.ports.clock import Clock`.

Adapters of equal rank implement them: the real ones in `healer.adapters`, the simulated ones in `healer.sim`.
Both pass the same contract suites in `tests/integration`.
"""
