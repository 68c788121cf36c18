"""The doctor: find faults of a running application by comparing its parts' own views.

Only `visit` asks the service and its Redis; all else is pure. A live system is never seen at one
instant, so the doctor looks twice, and reports what is there both times, for the same subject.
"""
