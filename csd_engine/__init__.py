"""The portable core: what a sample becomes, and the engine that makes it so on a computer next to the storage.

Standard library, numpy, Pillow and pyzmq only; Python 3.8 or newer; 32-bit ARM included. Never imports `ddlp` or torch:
`ddlp` imports this package, so that both sides of an epoch run the same operators.
"""

__version__ = "0.1.0"
