"""REST: who may, what a body holds, what a 2xx means."""
