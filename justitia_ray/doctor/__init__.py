"""What is wrong with a running application, found by holding its parts' own views together.

Pure: `visit` asks the service and its Redis, all else works on what was seen. A live system is
never seen at one instant, so everything is looked at twice, and only what is there both times, for
the same subject, is said.
"""
