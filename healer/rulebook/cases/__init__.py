"""The cases that lie beside the rules, and how they are run."""
