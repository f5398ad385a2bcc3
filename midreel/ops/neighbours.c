/* Inner products of each row with the next rows: most of the work of order-preserving merging.
 *
 * numpy computes one product at a time and loads both rows for each. This code multiplies a row with eight others while
 * it is in registers. It processes a few columns of a few rows at a time, so that all loads but the first hit the L1
 * cache. midreel/ops/neighbours.py calls it, or numpy if it was not compiled.
 */
#include <stddef.h>

#define LANES 8     /* floats in a vector */
#define FEW_ROWS 8   /* rows of a tile */
#define FEW_COLS 128 /* columns of a tile, which reads up to 15 rows: 8 KB */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Multiplies rows 0 to num_rows - 1 with the rows `first` to `first + count - 1` after each. `count` is a compile-time
 * constant, so the inner loops unroll. */
static inline __attribute__((always_inline)) void strip(const float *rows, size_t num_rows, size_t width, size_t reach,
                                                        size_t first, const int count, float *out) {
    lanes sums[FEW_ROWS][8] = {{{0}}};
    const size_t whole = width / LANES * LANES;
    for (size_t start = 0; start < whole; start += FEW_COLS) {
        const size_t end = start + FEW_COLS < whole ? start + FEW_COLS : whole;
        for (size_t i = 0; i < num_rows; i++) {
            const float *row = rows + i * width, *others = row + first * width;
            lanes sum[8];
#pragma GCC unroll 8
            for (int k = 0; k < count; k++) sum[k] = sums[i][k];
            for (size_t c = start; c < end; c += LANES) {
                const lanes x = *(const lanes *)(row + c);
                __builtin_prefetch(others + (count - 1 + FEW_ROWS) * width + c);
#pragma GCC unroll 8
                for (int k = 0; k < count; k++) sum[k] += x * *(const lanes *)(others + k * width + c);
            }
#pragma GCC unroll 8
            for (int k = 0; k < count; k++) sums[i][k] = sum[k];
        }
    }
    for (size_t i = 0; i < num_rows; i++)
        for (int k = 0; k < count; k++) {
            const float *row = rows + i * width, *other = row + (first + k) * width;
            float sum = 0;
            for (int lane = 0; lane < LANES; lane++) sum += sums[i][k][lane];
            for (size_t c = whole; c < width; c++) sum += row[c] * other[c];
            out[i * reach + first + k] = sum;
        }
}

static inline __attribute__((always_inline)) void all_rows(const float *rows, size_t num_rows, size_t width,
                                                           size_t reach, float *out) {
    for (size_t i = 0; i < num_rows; i += FEW_ROWS) {
        const size_t few = num_rows - i < FEW_ROWS ? num_rows - i : FEW_ROWS;
        const float *here = rows + i * width;
        float *there = out + i * reach;
        size_t k = 0;
        for (; k + 8 <= reach; k += 8) strip(here, few, width, reach, k, 8, there);
        for (; k + 4 <= reach; k += 4) strip(here, few, width, reach, k, 4, there);
        for (; k < reach; k++) strip(here, few, width, reach, k, 1, there);
    }
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void all_rows_by_avx2(const float *rows, size_t num_rows, size_t width,
                                                                 size_t reach, float *out) {
    all_rows(rows, num_rows, width, reach, out);
}
#endif

/* Writes out[i][k] = rows[i] . rows[i + k] for i < num_rows and k < reach. Reads num_rows + reach - 1 rows. */
void neighbour_products(const float *rows, size_t num_rows, size_t width, size_t reach, float *out) {
#ifdef __x86_64__ /* A test at run time, because GCC 11 cannot clone a function for x86-64-v3. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        all_rows_by_avx2(rows, num_rows, width, reach, out);
        return;
    }
#endif
    all_rows(rows, num_rows, width, reach, out);
}
