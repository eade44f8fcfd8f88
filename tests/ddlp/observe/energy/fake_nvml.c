/* Stands in for NVIDIA's libnvidia-ml.so.1 where there is none. The file $FAKE_NVML has a line a GPU: its energy in mJ (-1: it
 * has no counter) and its power in mW (-1: it does not answer); then, where it tells them, the per cent of the time in which it
 * is busy, its memory that is in use and all its memory in bytes. Read anew at each call. $FAKE_NVML_NAME: what all are called. */
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

enum { ENERGY, POWER, BUSY, USED, MEMORY, FIGURES };

/* The figures of a GPU; returns how many it tells, 0 where there is no such GPU. */
static int line(long number, long long *found)
{
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    char text[256];
    int told = 0;
    for (long at = 0; file && at <= number; ++at)
        told = !fgets(text, sizeof text, file) ? 0
             : sscanf(text, "%lld %lld %lld %lld %lld", found, found + 1, found + 2, found + 3, found + 4);
    if (file)
        fclose(file);
    return told < 2 ? 0 : told;
}

/* One figure of a GPU. */
static int ask(void *device, int figure, long long *value)
{
    long long found[FIGURES];
    int told = line((long)device - 1, found);
    if (!told || found[POWER] < 0)
        return GPU_IS_LOST;
    if (figure >= told || found[figure] < 0)
        return NOT_SUPPORTED;
    *value = found[figure];
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int result) { return result == NOT_SUPPORTED ? "Not Supported" : "GPU is lost"; }
int nvmlDeviceGetCount_v2(unsigned *count)
{
    long long found[FIGURES];
    for (*count = 0; line(*count, found); ++*count)
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
    return ask(device, ENERGY, (long long *)energy);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    long long value = 0;
    int result = ask(device, POWER, &value);
    *milliwatts = value;
    return result;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    long long value = 0;
    int result = ask(device, BUSY, &value);
    rates[0] = value;
    rates[1] = 0; /* of the memory's bus */
    return result;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long total_free_used[3])
{
    long long used = 0, total = 0;
    int result = ask(device, USED, &used) || ask(device, MEMORY, &total) ? NOT_SUPPORTED : OK;
    total_free_used[0] = total;
    total_free_used[1] = total - used;
    total_free_used[2] = used;
    return result;
}
