/* region.h for libjpeg's interface 6.2 */
#define LIBJPEG_ABI 62
#define DECODER_KIND ddlp_decoder_62
#include "jpeg/region.h"
