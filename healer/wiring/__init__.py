"""Parts of `healer.bootstrap` that one process or command alone needs: adapters chosen and wired."""
