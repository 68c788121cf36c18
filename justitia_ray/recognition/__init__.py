"""Recognition: finds the application of a call, even if its caller sends no header of this service.

Without Ray and asyncio: rules that read a call, names of sessions and conversations, and the
directory in which the ingresses look them up.
"""
