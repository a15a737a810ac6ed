#pragma once

#define GSA_VERSION_MAJOR 0
#define GSA_VERSION_MINOR 1
#define GSA_VERSION_PATCH 0
#define GSA_VERSION "0.1.0"
