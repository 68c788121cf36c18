"""The console: pictures of a running queue, computed once a second while there are viewers.

The parts do no I/O: they read a `SchedulerCore` and the events that it handled, and get the time as
an argument.
"""
