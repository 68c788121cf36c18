"""The doctor: finds faults of a running application by comparing its parts' own reports.

Only `visit` calls the service and its Redis; everything else is pure. A live system is never seen
at one instant, so the doctor looks twice, and reports faults found both times for the same subject.
"""
