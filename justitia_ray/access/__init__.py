"""Credentials: who calls, for which tenant, and what they may do. Without Ray, without HTTP."""
