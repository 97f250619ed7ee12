"""REST: permissions, the contents of bodies, the meaning of a 2xx."""
