"""The portable core, the same on the host and on the storage side: operators, data sets, batch files, protocol, engine.

Standard library, numpy, Pillow and pyzmq only; Python 3.8 or newer; never imports ``ddlp`` or torch.
"""

__version__ = "0.1.0"
