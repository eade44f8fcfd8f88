/* layout.h for libjpeg's interface 8 */
#define LIBJPEG_ABI 80
#define JPEG_LAYOUT ddlp_layout_80
#include "jpeg/layout.h"
