// SPDX-License-Identifier: BSL-1.0
#pragma once

// Names that system headers and other libraries are known to define as macros. A public header that uses one of
// them as a name does not compile after this file.
#define ESPALIER_TEST_TAKEN ::this_name_is_a_macro_elsewhere

// windows.h. Write (std::min)(a, b) and (std::numeric_limits<int>::max)().
#define min(...) ESPALIER_TEST_TAKEN
#define max(...) ESPALIER_TEST_TAKEN
#define small ESPALIER_TEST_TAKEN
#define interface ESPALIER_TEST_TAKEN
#define near ESPALIER_TEST_TAKEN
#define far ESPALIER_TEST_TAKEN
#define IN ESPALIER_TEST_TAKEN
#define OUT ESPALIER_TEST_TAKEN
#define ERROR ESPALIER_TEST_TAKEN
#define DELETE ESPALIER_TEST_TAKEN
#define CONST ESPALIER_TEST_TAKEN
#define VOID ESPALIER_TEST_TAKEN
#define Yield ESPALIER_TEST_TAKEN
#define GetObject ESPALIER_TEST_TAKEN

// complex.h, termios.h, sys/sysmacros.h, sys/param.h, GNU mode
#define I ESPALIER_TEST_TAKEN
#define B0 ESPALIER_TEST_TAKEN
#define major ESPALIER_TEST_TAKEN
#define minor ESPALIER_TEST_TAKEN
#define isset ESPALIER_TEST_TAKEN
#undef linux
#define linux ESPALIER_TEST_TAKEN
#undef unix
#define unix ESPALIER_TEST_TAKEN

// ctype.h of the BSDs
#define _A ESPALIER_TEST_TAKEN
#define _B ESPALIER_TEST_TAKEN
#define _C ESPALIER_TEST_TAKEN
#define _L ESPALIER_TEST_TAKEN
#define _N ESPALIER_TEST_TAKEN
#define _P ESPALIER_TEST_TAKEN
#define _S ESPALIER_TEST_TAKEN
#define _U ESPALIER_TEST_TAKEN
#define _X ESPALIER_TEST_TAKEN

// X11
#define None ESPALIER_TEST_TAKEN
#define Bool ESPALIER_TEST_TAKEN
#define Status ESPALIER_TEST_TAKEN
#define Success ESPALIER_TEST_TAKEN
#define True ESPALIER_TEST_TAKEN
#define False ESPALIER_TEST_TAKEN
#define Always ESPALIER_TEST_TAKEN

// Test frameworks, loggers, debug builds
#define CHECK(...) ESPALIER_TEST_TAKEN
#define REQUIRE(...) ESPALIER_TEST_TAKEN
#define SECTION(...) ESPALIER_TEST_TAKEN
#define INFO ESPALIER_TEST_TAKEN
#define WARN ESPALIER_TEST_TAKEN
#define FAIL ESPALIER_TEST_TAKEN
#define LOG ESPALIER_TEST_TAKEN
#define DEBUG ESPALIER_TEST_TAKEN
#define EPS ESPALIER_TEST_TAKEN
#define PI ESPALIER_TEST_TAKEN
