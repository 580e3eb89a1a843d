// Functions between BEGIN_TARGET and END_TARGET are compiled for the named instruction sets. Include standard headers
// before BEGIN_TARGET: an inline function compiled for a newer processor could otherwise be linked for all processors.
#pragma once

#define NIGHTQUANT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(sets) \
  NIGHTQUANT_PRAGMA(clang attribute push(__attribute__((target(sets))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(sets) _Pragma("GCC push_options") NIGHTQUANT_PRAGMA(GCC target(sets))
#define END_TARGET _Pragma("GCC pop_options")
#endif
