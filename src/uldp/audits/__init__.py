"""Audits: attempts to refute the epsilon that an experiment claims, with canary users in its real sessions."""
