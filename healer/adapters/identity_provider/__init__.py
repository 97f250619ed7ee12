"""OpenID Connect: discovery and keys, what tokens claim, and the code flow."""
