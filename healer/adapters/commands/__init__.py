"""Commands of the site, started on this machine."""
