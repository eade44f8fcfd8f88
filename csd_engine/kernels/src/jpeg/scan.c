/* Progressive scans for every processor. */
#include "jpeg/scan.h"
#include "variant.h"

#define SCAN scan_plain
#define TARGETED
#include "jpeg/scan_body.h"

int scan_decode(const progressive_scan *s, bit_stream *stream) {
#if defined(DDLP_BMI2)
    if (variant_bmi2()) return scan_bmi2(s, stream);
#endif
    return scan_plain(s, stream);
}
