// Descriptions of decoders in config.json files.
#pragma once

#include <string>

#include "json.h"
#include "spec.h"

namespace turing {

// Throws Error naming the field that is missing, malformed or asks for what does not exist here.
ModelSpec spec_from_config(const Json& config, const std::string& where);

}  // namespace turing
