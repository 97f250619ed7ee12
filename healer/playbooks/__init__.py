"""The playbook language: `advance`, from a run's log to its next intent."""

from healer.playbooks.advance import Ask, Do, Finish, Intent, Skip, Sleep, advance, stuck_at

__all__ = ["Ask", "Do", "Finish", "Intent", "Skip", "Sleep", "advance", "stuck_at"]
