"""What people are told: messages, news of an incident, tickets, links back to the console."""
