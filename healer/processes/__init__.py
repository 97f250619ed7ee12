"""The loops of the long-running parts, over ports. `healer.bootstrap` wires them."""
