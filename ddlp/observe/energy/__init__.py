"""Energy: what an epoch takes, by part, measured where there is a meter and by the paper's model where there is none.

`EnergyMeter` is the face. A source (`sources`, `nvml`, `device`, `external`) gives readings, `tally` makes joules of them,
`model` fills in for missing meters, `result` is what comes out, `compare` puts several
side by side; `command` is `ddlp energy`. Imports no torch. Must not live
here: anything that an epoch waits for.
"""

from ddlp.observe.energy.compare import Summary, comparison, summaries
from ddlp.observe.energy.external import ExternalMeter
from ddlp.observe.energy.meter import EnergyMeter
from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.observe.energy.result import EnergyResult, PartEnergy, load, save
from ddlp.observe.energy.sources import Source

__all__ = [
    "EnergyMeter",
    "EnergyResult",
    "ExternalMeter",
    "PaperModel",
    "PartEnergy",
    "Source",
    "Summary",
    "Tariff",
    "comparison",
    "load",
    "save",
    "summaries",
]
