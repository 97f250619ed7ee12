"""Schedules of deaths: the real engine in many processes of one thread, each killed and stopped from a seed.

`processes` gives the processes and who comes next; `store` is PostgreSQL as they see it, with sessions, locks
and leases; `world` is the site around them; `invariants` says what may never be seen.
"""
