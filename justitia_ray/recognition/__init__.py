"""Recognition: which application a call belongs to, also where its caller sends no header of ours.

Without Ray and asyncio: rules that read a call, names of sessions and of conversations, and the
directory in which the ingresses look them up.
"""
