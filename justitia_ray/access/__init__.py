"""Credentials: who calls, for which tenant, with which rights. Independent of Ray and HTTP."""
