"""The console: what a running queue looks like, computed once a second while there are viewers.

The parts are pure: they read a `SchedulerCore` and the events that it handled, and get the time.
"""
