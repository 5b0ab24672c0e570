"""How to launch the servers of a host: pure decisions, from facts and headers to values with reasons.

`decide` is the whole; the modules beside it are its rules, each a function of its inputs.
"""

from gezelctl.engines.llama_cpp.planner.budget import Held, HostMemory, host_memory
from gezelctl.engines.llama_cpp.planner.decide import decide
from gezelctl.engines.llama_cpp.planner.types import HostPlan, LaunchAnswer, LaunchQuestion, Refusal, Running

__all__ = [
    "Held",
    "HostMemory",
    "HostPlan",
    "LaunchAnswer",
    "LaunchQuestion",
    "Refusal",
    "Running",
    "decide",
    "host_memory",
]
