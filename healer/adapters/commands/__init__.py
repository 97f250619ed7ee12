"""The site's commands, started on this machine."""
