"""The benchmarks that ship: commands that measure, print a table or JSON, and judge nothing else.

Each figure stands beside the limit of the same machine in the same run (`raw.py`), measured in
alternating rounds (`rounds.py`) with both ends of a connection held on cores of their own
(`environment.py`).
"""
