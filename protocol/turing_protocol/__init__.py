"""The contract between Turing Engine's gateways and engines: structs, codec, hashes, lanes, errors.

Import names from the submodule that defines them; only the version lives here.
"""

from turing_protocol.messages import MAJOR, MINOR

__all__ = ["MAJOR", "MINOR"]
