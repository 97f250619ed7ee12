"""The cases shipped with the rules, and how they are run."""
