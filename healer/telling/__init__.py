"""Texts for people: messages, news, tickets, links."""
