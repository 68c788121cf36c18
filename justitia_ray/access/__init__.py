"""Credentials of callers: identity, tenant and rights. Independent of Ray and HTTP."""
