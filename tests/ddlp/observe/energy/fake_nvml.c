/* Stands in for NVIDIA's libnvidia-ml.so.1 where there is none. The file $FAKE_NVML has a line a GPU: its energy in mJ (-1: it
 * has no counter) and its power in mW (-1: it does not answer). Read anew at each call. $FAKE_NVML_NAME: what all are called. */
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

static int line(long number, long long *energy, long *power)
{
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    long at = 0;
    while (file && fscanf(file, "%lld %ld", energy, power) == 2)
        if (at++ == number) {
            fclose(file);
            return 1;
        }
    if (file)
        fclose(file);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int result) { return result == NOT_SUPPORTED ? "Not Supported" : "GPU is lost"; }
int nvmlDeviceGetCount_v2(unsigned *count)
{
    long long energy;
    long power;
    for (*count = 0; line(*count, &energy, &power); ++*count)
        ;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(long)(index + 1);
    return OK;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    const char *one = getenv("FAKE_NVML_NAME");
    if (one)
        snprintf(name, length, "%s", one);
    else
        snprintf(name, length, "Fake %ld", (long)device - 1);
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-%ld%ld%ld%ld-fake", (long)device - 1, (long)device - 1, (long)device - 1, (long)device - 1);
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy)
{
    long long found;
    long power;
    if (!line((long)device - 1, &found, &power) || power < 0)
        return GPU_IS_LOST;
    *energy = found;
    return found < 0 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    long long energy;
    long power;
    if (!line((long)device - 1, &energy, &power) || power < 0)
        return GPU_IS_LOST;
    *milliwatts = power;
    return OK;
}
