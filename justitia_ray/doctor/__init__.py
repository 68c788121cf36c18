"""The doctor: finds faults of a running service by comparing its processes' own reports.

Only `visit` calls the service and its Redis; the other modules do no I/O. A live system never shows
all its state at one instant, so the doctor takes two snapshots (looks), and reports a fault only if
both show it for the same object.
"""
