"""The loops of the long-running parts: what each does, over ports. `healer.bootstrap` wires them."""
