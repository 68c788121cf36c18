"""Recognition of agents' sessions: find the application of a call without headers of this service.

Without Ray and asyncio: the rules that read a call, the names of sessions and conversations, and
the directory in which ingresses look the names up.
"""
