/* FIXTURE. Elements of the fake libraries, by the numbers that CUDA gives their types. */
#ifndef FAKE_ELEMENTS_H
#define FAKE_ELEMENTS_H

#include <stdint.h>
#include <string.h>

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };

static double number(int type, const char *at, int64_t i)
{
    if (type == R_64F)
        return ((const double *)at)[i];
    if (type == R_32F)
        return ((const float *)at)[i];
    if (type == R_16F)
        return (double)((const _Float16 *)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void put(int type, char *at, int64_t i, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    if (type == R_64F) {
        ((double *)at)[i] = value;
    } else if (type == R_32F) {
        ((float *)at)[i] = narrow;
    } else if (type == R_16F) {
        ((_Float16 *)at)[i] = (_Float16)narrow;
    } else {
        memcpy(&bits, &narrow, 4);
        ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

#endif
