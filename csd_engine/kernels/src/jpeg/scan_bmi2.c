/* Progressive scans with BMI2, which finds the n-th set bit in one instruction. */
#include "jpeg/scan.h"

#if defined(DDLP_BMI2)
#include <immintrin.h>

#define SCAN scan_bmi2
#define TARGETED DDLP_BMI2
#define DEPOSIT _pdep_u64
#include "jpeg/scan_body.h"
#endif
