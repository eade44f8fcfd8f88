/* region.h for libjpeg's interface 8 */
#define LIBJPEG_ABI 80
#define DECODER_KIND ddlp_decoder_80
#include "jpeg/region.h"
