"""K-means on a GPU: nearest centroid and the changes of the sums for rows whose cluster changed in one kernel, for rows
that fit into registers (`KMeansKernel`); the changes alone for wider rows (`MoveKernel`).

A thread keeps one or two rows in registers and goes through the centroids in shared memory, so the distances are never
written and each row is read once. As on processors float32 proposes and float64 decides, for the rows that would change
their cluster; a warp takes these one by one, a lane for each column, and adds to the sums in float64. The order of
these additions differs from run to run, by which the sums differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flegel.algorithms.cuda_source import CudaError, CudaKernel
from flegel.configuration.active import active

MOST_COLUMNS = 64  # beyond that rows do not fit into registers
SHARED = 46 * 1024  # bytes of centroids at a time: no kernel may take more than 48 KiB without asking

SOURCE = """
extern "C" __global__ void __launch_bounds__(THREADS, 2) visit(
    const float* __restrict__ rows, const float* __restrict__ negated, const float* __restrict__ half,
    const float* __restrict__ shift, const double* __restrict__ origin, const double* __restrict__ centres,
    int* __restrict__ state, double* sums, double* counts, double* squares, int count, int clusters)
{
    __shared__ __align__(16) float c[GROUP * WIDE];
    __shared__ float h[GROUP];
    const int lane = threadIdx.x & 31;
    for (int first = blockIdx.x * THREADS * ROWS; first < count; first += gridDim.x * THREADS * ROWS) {
        float x[ROWS][WIDE];
        float least[ROWS];
        int which[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = first + r * THREADS + threadIdx.x;
            const float* row = rows + (long long)min(i, count - 1) * COLUMNS;
#if COLUMNS % 4 == 0
            #pragma unroll
            for (int d = 0; d < WIDE; d += 4) {
                const float4 v = *reinterpret_cast<const float4*>(row + d);
                x[r][d] = v.x;
                x[r][d + 1] = v.y;
                x[r][d + 2] = v.z;
                x[r][d + 3] = v.w;
            }
#else
            #pragma unroll
            for (int d = 0; d < WIDE; d++)
                x[r][d] = d < COLUMNS ? row[d] : 0.0f;
#endif
#if SHIFTED
            #pragma unroll
            for (int d = 0; d < COLUMNS; d++) x[r][d] -= shift[d];
#endif
            least[r] = __int_as_float(0x7f800000);
            which[r] = 0;
        }
        for (int begin = 0; begin < clusters; begin += GROUP) {
            const int size = min(GROUP, clusters - begin);
            if (clusters > GROUP || first == blockIdx.x * THREADS * ROWS) {
                __syncthreads();
                for (int at = threadIdx.x; at < size * WIDE; at += THREADS) c[at] = negated[begin * WIDE + at];
                for (int at = threadIdx.x; at < size; at += THREADS) h[at] = half[begin + at];
                __syncthreads();
            }
            #pragma unroll 2
            for (int j = 0; j < size; j++) {
                float value[ROWS];
                #pragma unroll
                for (int r = 0; r < ROWS; r++) value[r] = h[j];
                #pragma unroll
                for (int d = 0; d < WIDE; d += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(c + j * WIDE + d);
                    #pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        value[r] = fmaf(x[r][d], v.x, value[r]);
                        value[r] = fmaf(x[r][d + 1], v.y, value[r]);
                        value[r] = fmaf(x[r][d + 2], v.z, value[r]);
                        value[r] = fmaf(x[r][d + 3], v.w, value[r]);
                    }
                }
                #pragma unroll
                for (int r = 0; r < ROWS; r++)
                    if (value[r] < least[r]) { least[r] = value[r]; which[r] = begin + j; }
            }
        }
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = first + r * THREADS + threadIdx.x;
            const int last = i < count ? state[i] : which[r];
            unsigned changed = __ballot_sync(0xffffffffu, last != which[r]);
            while (changed) {
                const int of = __ffs(changed) - 1;
                changed &= changed - 1;
                const int fresh = __shfl_sync(0xffffffffu, which[r], of);
                const int old = __shfl_sync(0xffffffffu, last, of);
                const float* row = rows + (long long)__shfl_sync(0xffffffffu, i, of) * COLUMNS;
                double value[(COLUMNS + 31) / 32];
                double nearer = 0.0, square = 0.0;
                #pragma unroll
                for (int p = 0; p < (COLUMNS + 31) / 32; p++) {
                    const int d = lane + 32 * p;
                    if (d < COLUMNS) {
                        value[p] = (double)row[d] - origin[d];
                        square += value[p] * value[p];
                        if (old >= 0) {
                            const double a = centres[(long long)fresh * COLUMNS + d];
                            const double b = centres[(long long)old * COLUMNS + d];
                            nearer += (a - b) * (2.0 * value[p] - a - b);
                        }
                    }
                }
                #pragma unroll
                for (int step = 16; step; step >>= 1) {
                    square += __shfl_xor_sync(0xffffffffu, square, step);
                    nearer += __shfl_xor_sync(0xffffffffu, nearer, step);
                }
                if (old >= 0 && !(nearer > 0.0)) continue;
                #pragma unroll
                for (int p = 0; p < (COLUMNS + 31) / 32; p++) {
                    const int d = lane + 32 * p;
                    if (d < COLUMNS) {
                        atomicAdd(sums + (long long)fresh * COLUMNS + d, value[p]);
                        if (old >= 0) atomicAdd(sums + (long long)old * COLUMNS + d, -value[p]);
                    }
                }
                if (lane == 30) {
                    atomicAdd(counts + fresh, 1.0);
                    if (old >= 0) atomicAdd(counts + old, -1.0);
                }
                if (lane == 31) {
                    atomicAdd(squares + fresh, square);
                    if (old >= 0) atomicAdd(squares + old, -square);
                }
                if (lane == of) state[i] = fresh;
            }
        }
    }
}
"""

MOVE_SOURCE = """
extern "C" __global__ void __launch_bounds__(THREADS) move(
    const float* __restrict__ rows, const int* __restrict__ proposed, const double* __restrict__ origin,
    const double* __restrict__ centres, int* __restrict__ state, double* sums, double* counts, double* squares,
    int count)
{
    const int lane = threadIdx.x & 31;
    const int warps = gridDim.x * (THREADS / 32);
    for (long long first = 32LL * (blockIdx.x * (THREADS / 32) + threadIdx.x / 32); first < count;
         first += 32LL * warps) {
        const long long i = first + lane;
        const int fresh_here = i < count ? proposed[i] : 0;
        const int old_here = i < count ? state[i] : 0;
        unsigned changed = __ballot_sync(0xffffffffu, fresh_here != old_here);
        while (changed) {
            const int of = __ffs(changed) - 1;
            changed &= changed - 1;
            const int fresh = __shfl_sync(0xffffffffu, fresh_here, of);
            const int old = __shfl_sync(0xffffffffu, old_here, of);
            const float* row = rows + (first + of) * COLUMNS;
            const double* joined = centres + (long long)fresh * COLUMNS;
            double nearer = 0.0, square = 0.0;
            for (int d = lane; d < COLUMNS; d += 32) {
                const double value = (double)row[d] - origin[d];
                square += value * value;
                if (old >= 0) {
                    const double a = joined[d], b = centres[(long long)old * COLUMNS + d];
                    nearer += (a - b) * (2.0 * value - a - b);
                }
            }
            #pragma unroll
            for (int step = 16; step; step >>= 1) {
                square += __shfl_xor_sync(0xffffffffu, square, step);
                nearer += __shfl_xor_sync(0xffffffffu, nearer, step);
            }
            if (old >= 0 && !(nearer > 0.0)) continue;
            for (int d = lane; d < COLUMNS; d += 32) {
                const double value = (double)row[d] - origin[d];
                atomicAdd(sums + (long long)fresh * COLUMNS + d, value);
                if (old >= 0) atomicAdd(sums + (long long)old * COLUMNS + d, -value);
            }
            if (lane == 30) {
                atomicAdd(counts + fresh, 1.0);
                if (old >= 0) atomicAdd(counts + old, -1.0);
            }
            if (lane == 31) {
                atomicAdd(squares + fresh, square);
                if (old >= 0) atomicAdd(squares + old, -square);
            }
            if (lane == of) state[i] = fresh;
        }
    }
}
"""


class MoveKernel:
    """Takes rows of float32 to the clusters that were proposed for them, where float64 agrees that these are nearer: a
    warp for each row that changes, no copy of rows in float64, and no wait for the device. Raises `CudaError` where it
    cannot be made."""

    def __init__(self, columns: int, device: torch.device) -> None:
        rules = active().gpu
        self._threads = 32 * rules.warps_per_block
        self._blocks = rules.blocks_per_multiprocessor * torch.cuda.get_device_properties(device).multi_processor_count
        self._kernel = CudaKernel(MOVE_SOURCE, "move", device, {"COLUMNS": columns, "THREADS": self._threads})

    def move(
        self,
        features: torch.Tensor,
        proposed: torch.Tensor,
        origin: torch.Tensor,
        centres: torch.Tensor,
        state: torch.Tensor,
        sums: Sequence[torch.Tensor],
    ) -> None:
        """Less than 2³¹ rows: features (n, columns) float32, proposed and state (n) int32, all without gaps."""
        if len(features):
            blocks = min(self._blocks, -(-len(features) // self._threads))
            self._kernel(blocks, self._threads, (features, proposed, origin, centres, state, *sums, len(features)))


class KMeansKernel:
    """The kernel for rows and centroids of one size on one device. Raises `CudaError` where it cannot be made."""

    def __init__(self, clusters: int, columns: int, shifted: bool, device: torch.device) -> None:
        """`shifted`: the origin is subtracted from rows before they are compared with centroids."""
        if columns > MOST_COLUMNS:
            raise CudaError(f"rows of {columns} columns do not fit into registers")
        self._wide = -(-columns // 4) * 4
        rules = active().gpu
        self._rows = 2 if 2 * self._wide <= rules.registers_for_rows else 1
        group = min(SHARED // (4 * (self._wide + 1)), clusters)
        self._threads = 32 * rules.warps_per_block
        self._blocks = rules.blocks_per_multiprocessor * torch.cuda.get_device_properties(device).multi_processor_count
        constants = {
            "COLUMNS": columns,
            "WIDE": self._wide,
            "ROWS": self._rows,
            "THREADS": self._threads,
            "GROUP": group,
            "SHIFTED": int(shifted),
        }
        self._kernel = CudaKernel(SOURCE, "visit", device, constants)

    def set_parameter(self, origin: torch.Tensor, centres: torch.Tensor, half: torch.Tensor) -> None:
        """Centroids about the origin and half their squared lengths, in float64 on the device."""
        spare = self._wide - centres.shape[1]
        self._negated = torch.nn.functional.pad(-centres.float(), (0, spare)).contiguous()
        self._half, self._centres, self._origin, self._shift = half.float(), centres, origin, origin.float()

    def visit(self, features: torch.Tensor, state: torch.Tensor, sums: Sequence[torch.Tensor]) -> None:
        """All rows of a block, less than 2³¹: features (n, columns) float32, state (n) int32, both without gaps."""
        count = len(features)
        if not count:
            return
        values = (
            features,
            self._negated,
            self._half,
            self._shift,
            self._origin,
            self._centres,
            state,
            *sums,
            count,
            len(self._centres),
        )
        self._kernel(min(self._blocks, -(-count // (self._threads * self._rows))), self._threads, values)
