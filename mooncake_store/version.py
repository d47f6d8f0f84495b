"""The version of this package, apart from everything that imports something.

(The rooms take it from here: the package itself names the SDK, which they may not reach.)
"""

__version__ = "0.1.0"
