/* layout.h for libjpeg's interface 6.2 */
#define LIBJPEG_ABI 62
#define JPEG_LAYOUT ddlp_layout_62
#include "jpeg/layout.h"
